//! Resources: what each type takes, and how resources contain each other.
//!
//! | file | promise |
//! |---|---|
//! | `handler` | what each type of resource takes |
//! | `report` | what is answered, in the fields that programs read |
//! | `graph` | which resource lies in which, who shares a sandbox, and what must not overlap |

mod graph;
mod handler;
mod report;

pub(crate) use graph::{INHERIT, ResourceGraph};
pub use handler::HandlerError;
pub(crate) use handler::{accept, detect, shape};
pub use report::{CheckpointReport, RestoreReport, SandboxReport};
