//! What the project's own tests reach beneath the engine. Nothing in here is for other programs, and all of it may change.

/// Access to files.
pub mod fs {
    pub use crate::fs::*;
}

/// Bugs that are put in on purpose.
pub mod seeded {
    pub use crate::failpoints::*;
}

/// The state store.
pub mod store {
    pub use crate::store::*;
}
