//! Resources and how they belong together.
//!
//! | file | promise |
//! |---|---|
//! | `graph` | which resource lies in which, who shares a sandbox, and what must not overlap |

pub mod graph;

pub use graph::{Graph, INHERIT};
