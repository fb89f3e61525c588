//! The engine as a program sees it: through `Manager`, on real file systems and under real mounts.
#![allow(
    clippy::disallowed_methods,
    reason = "the tests look at the disk by means of their own, beside the engine"
)]

mod attacks_a;
mod attacks_b;
mod attacks_b13;
mod attacks_c;
mod commit_conflicts;
mod commit_failure;
mod commit_faulty;
mod commit_forward;
mod commit_histories;
mod commit_hunks;
mod commit_left;
mod commit_locks;
mod commit_meddle;
mod commit_parts;
mod commit_rows;
mod commit_small;
mod commit_support;
mod commit_trees;
mod commit_undo;
mod config;
mod config_levels;
mod conformance;
mod garbage;
mod log;
mod manager;
mod marks;
mod metadata;
mod mixed;
mod mixed_sweep;
mod overlay;
mod permissions;
mod plugin;
mod policy;
mod policy_table;
mod processes;
mod property;
mod races;
mod registry;
mod retention;
mod sqlite;
mod sqlite_commit;
mod sqlite_histories;
mod sqlite_interrupted;
mod squash;
mod status;
mod support;
mod toy;
