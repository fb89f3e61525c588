//! What nearly every test of the command line uses: `use escrow_testkit::prelude::*;`

pub use std::collections::{BTreeMap, BTreeSet, HashMap};
pub use std::ffi::{OsStr, OsString};
pub use std::fs::{self, File, Permissions};
pub use std::os::unix::ffi::{OsStrExt, OsStringExt};
pub use std::os::unix::fs::{MetadataExt, PermissionsExt};
pub use std::os::unix::process::ExitStatusExt;
pub use std::path::{Path, PathBuf};
pub use std::process::{Child, Command, Stdio};
pub use std::thread;
pub use std::time::{Duration, Instant};

pub use serde_json::{Value, json as value};

pub use crate::cli::{Words, has, json, json_error, keys, lacks, list, put, words};
pub use crate::files::{
    below, chmod, chown, mode, names, output_of, paths, read, remove, sh, symlink, write,
};
pub use crate::signature::{Ignore, Sig, assert_same, differences, signature, unchanged};
pub use crate::skip::{is_root, require_root, skip};
pub use crate::stepper::{Run, SYNCS, Step, require_stepper};
pub use crate::user::{GID, UID};
pub use crate::{
    Cli, Disk, Fault, Fs, LoopFs, Mounted, Outcome, OverlayMount, Stepper, Terminal, World,
    XattrKind, need, tree,
};
