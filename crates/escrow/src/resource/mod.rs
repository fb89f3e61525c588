//! Resources: what each type takes, and how they belong together.
//!
//! | file | promise |
//! |---|---|
//! | `handler` | what each type of resource takes, and how a sandbox of it is begun |
//! | `answers` | what is answered, in the fields that programs read |
//! | `graph` | which resource lies in which, who shares a sandbox, and what must not overlap |

pub mod answers;
pub mod graph;
pub mod handler;

pub use answers::{CheckpointAnswer, RestoreAnswer, SandboxAnswer};
pub use graph::{Graph, INHERIT};
pub use handler::{Handler, HandlerError, SandboxRequest, detect, handler};
