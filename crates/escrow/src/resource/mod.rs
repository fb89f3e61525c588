//! Resources: what each type takes, and how resources contain each other.
//!
//! | file | promise |
//! |---|---|
//! | `handler` | what each type of resource takes |
//! | `databases` | the databases of a project: those that lie in it, and those that its `.env` names |
//! | `project` | the project that a directory lies in |
//! | `report` | what is answered, in the fields that programs read |
//! | `graph` | which resource lies in which, who shares a sandbox, and what must not overlap |

pub(crate) mod databases;
mod graph;
mod handler;
mod project;
mod report;

pub(crate) use graph::{INHERIT, ResourceGraph};
pub use handler::HandlerError;
pub(crate) use handler::{accept, detect, name_of_url, shape, shapes_at};
pub(crate) use project::project_root;
pub use report::{CheckpointReport, RestoreReport, SandboxReport};
