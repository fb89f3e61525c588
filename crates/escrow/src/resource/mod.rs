//! Resources: handlers by type, and how resources contain each other.
//!
//! | file | promise |
//! |---|---|
//! | `handler` | what each type of resource takes, and how a sandbox of it is begun |
//! | `answers` | what is answered, in the fields that programs read |
//! | `graph` | which resource lies in which, who shares a sandbox, and what must not overlap |

pub mod graph;
pub mod handler;
pub mod report;

pub use graph::{INHERIT, ResourceGraph};
pub use handler::{Handler, HandlerError, SandboxRequest, detect, handler};
pub use report::{CheckpointReport, RestoreReport, SandboxReport};
