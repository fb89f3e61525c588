//! All access to the file system goes through this module.
//!
//! Everything works from directory handles that cannot be left ([`Dir`]); nothing follows a
//! symbolic link, crosses a mount point or builds a path by pasting (rules S1, S2, S4).
//!
//! | file | promise |
//! |---|---|
//! | `accounts` | what the machine's account files say of users and groups |
//! | `areas` | whose an entry among areas is, recognized by its name |
//! | `as_owner` | one step on what is closed to its own owner, without opening it |
//! | `ballast` | room that is given up for a while when the disk is full |
//! | `btrfs` | subvolumes: snapshots of them, and which one a directory lies in |
//! | `dir` | a handle to a directory, from which only what lies beneath can be reached |
//! | `codec` | records as bytes, of a fixed width but for texts |
//! | `meta` | what the kernel says of one entry |
//! | `walk` | every directory of a tree once, in parallel, at any depth |
//! | `manifest` | what a tree was, compact enough for a million files |
//! | `copy` | a parallel copy that keeps everything, in one pass with its manifest |
//! | `place` | entries below a directory, hard-link groups kept, directory metadata last |
//! | `content` | bytes of one file: copied with their holes, compared |
//! | `exposure` | whether something outside may still write files of a sandbox |
//! | `extents` | how much of a file lies in blocks that other files hold too |
//! | `handle` | owner, mode, attributes and times of one entry, by its handle |
//! | `xattr` | extended attributes of one entry: read, set, digested |
//! | `fingerprint` | one entry as it was seen once, recognised later |
//! | `lease` | whether a process still has a file open for writing |
//! | `mounts` | where a directory really lies, whichever mount it is reached through |
//! | `atomic_file` | a file that is wholly old or wholly new, also after a power cut |
//! | `owned` | text files that no process but this user and root can have written |
//! | `stat` | what the kernel says of one entry, asked for; births only where they identify it |
//! | `state_dir` | directories and locks that are the engine's own |
//! | `process` | which process is meant, also when its number is reused |
//! | `remove` | a tree that is gone afterwards, whatever its modes |
//! | `usage` | how much of a disk a tree takes, and how much of that others hold too |

pub mod accounts;
pub mod areas;
mod as_owner;
pub mod atomic_file;
pub mod ballast;
pub mod btrfs;
pub mod caches;
pub(crate) mod codec;
pub mod content;
pub mod copy;
pub mod dir;
mod error;
pub mod exposure;
pub mod extents;
pub mod fingerprint;
pub mod flags;
pub mod generation;
pub mod handle;
pub mod hide_layer;
pub mod layering;
pub mod lease;
pub mod manifest;
pub mod meta;
pub mod mounts;
pub mod own_files;
pub mod owned;
pub mod place;
pub mod process;
pub mod remove;
mod stat;
pub mod state_dir;
pub mod times;
pub mod usage;
pub mod walk;
pub mod workspace;
pub mod xattr;

pub use dir::{Dir, Resolver};
pub use error::{Cause, FsError};
pub use fingerprint::{Fingerprint, MovedEntries, MovedEntry};
pub use flags::Flags;
pub use handle::EntryHandle;
pub use meta::{Meta, Stamp};

/// What the functions of this room return.
pub type Result<T> = std::result::Result<T, FsError>;
