//! Escrow's engine: an agent works on the real thing without touching it.
//!
//! A *plan* gives each of its *resources* a *sandbox*, made by a *strategy*. Inside, one reads and
//! writes; one diff shows everything that would change. Begin with [`manager::Manager`].
//!
//! No part of the engine prints, reads the environment or ends the process: the clock, ids,
//! directories and the principal are handed in. `docs/architecture.md` shows the rooms.

pub mod checkpoint;
pub mod commit;
pub mod config;
pub mod diff;
pub mod error;
pub mod event;
pub mod fs;
pub mod manager;
pub mod model;
pub mod policy;
pub mod resource;
pub mod run;
pub mod seeded;
pub mod store;
pub mod strategy;
