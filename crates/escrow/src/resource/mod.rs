//! Resources and how they belong together.
//!
//! | file | promise |
//! |---|---|
//! | `answers` | what is answered, in the fields that programs read |
//! | `graph` | which resource lies in which, who shares a sandbox, and what must not overlap |

pub mod answers;
pub mod graph;

pub use answers::{CheckpointAnswer, RestoreAnswer, SandboxAnswer};
pub use graph::{Graph, INHERIT};
