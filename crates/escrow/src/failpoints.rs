//! Failpoints: bugs that tests switch on, to prove that the fault tests find them.
//!
//! Built only with the feature `seeded-bugs`, which nothing but the tests turns on. Each name is a
//! mistake that could really be made; without the feature every question is answered with no,
//! and the compiler takes the branch away.

/// Every bug that can be asked for.
pub const ALL: &[&str] = &[
    // What is staged is not synced before the decision.
    "no-stage-sync",
    // The directories are not synced after the renames.
    "no-directory-sync",
    // The decision is not recorded.
    "no-decision",
    // It is recorded that everything is applied before it is.
    "applied-too-early",
    // A file is replaced by removing the old one first.
    "no-exchange",
    // A failed commit does not take back what was applied.
    "no-undo-on-failure",
    // Recovery drops what was decided.
    "recover-drops-decided",
    // What is staged is removed before it is needed no more.
    "stage-removed-early",
    // Directories do not get their looks back.
    "undo-forgets-directories",
    // The sandboxes go before every original holds the new state.
    "sandbox-removed-early",
    // A failed sync is tried again, and believed.
    "sync-twice",
    // A failed rename is not noticed.
    "rename-error-dropped",
    // An undo is not recorded before it begins.
    "undo-not-recorded",
    // Recovery stops at the first member.
    "recover-first-member-only",
    // A restore begins before it is recorded that it will be done.
    "restore-undecided",
    // What a checkpoint keeps is not synced.
    "checkpoint-not-synced",
    // A fork can be used before all of it is there.
    "fork-one-by-one",
    // Garbage collection does not know that a fork lives on what another plan left.
    "gc-takes-shared-layers",
    // The sandboxes of a plan are removed one by one, while the plan is open.
    "cleanup-one-by-one",
    // The sandboxes of a plan are rolled back one by one, without a record of it.
    "rollback-one-by-one",
    // A plan can be used before all its sandboxes are there.
    "create-one-by-one",
    // A sandbox is not told of one path that was released.
    "part-forgets-a-path",
    // Files that a sandbox which could not be removed shares with the original stay shared.
    "shared-after-commit",
    // Garbage collection removes areas that the store does not know, and a store that lost its records is used.
    "gc-takes-unknown",
    // The point of no return is not recorded.
    "forward-not-noted",
    // A step whose outcome is not known is carried out again.
    "outcome-guessed",
    // On a full disk the writes of the store do not give the ballast up.
    "ballast-kept",
];

/// Bugs that let something out: the tests of attacks show that each attack works where its bug is.
pub const WALLS: &[&str] = &[
    // Layers, and copies, can be written through a descriptor that was handed out, also when the last command has ended.
    "layers-left-open",
    // Files that something outside may still write become the original's.
    "exposed-files-linked",
    // What is to become a command can be traced, and holds what its caller had open.
    "open-until-exec",
    // What was expected is not compared with what is released.
    "expected-not-compared",
    // What is not the plan's is mounted so that it can be written.
    "mounts-left-writable",
    // Landlock confines nothing.
    "no-second-wall",
    // Both of these.
    "both-walls-open",
    // A terminal is looked at, and then the kernel resizes what has its number by then.
    "resize-goes-on",
];

/// Whether this bug is wanted.
#[cfg(feature = "seeded-bugs")]
#[expect(
    clippy::disallowed_methods,
    reason = "a test-only switch, which must reach the program from outside"
)]
pub(crate) fn bug(name: &str) -> bool {
    debug_assert!(ALL.contains(&name) || WALLS.contains(&name), "{name}");
    std::env::var_os("ESCROW_SEEDED_BUG").is_some_and(|wanted| wanted == name)
}

/// Whether this bug is wanted: never, in what users get.
#[cfg(not(feature = "seeded-bugs"))]
pub(crate) const fn bug(_name: &str) -> bool {
    false
}

/// Whether a file of this name in an original cannot be replaced, though nothing of it says so before: a file beside the
/// directory of the original, `ORIGINAL.refuses`, holds its name. For commits that must be taken back in the middle.
#[cfg(feature = "seeded-bugs")]
#[expect(
    clippy::disallowed_methods,
    reason = "a test-only switch, which every process that works on the original must find"
)]
pub(crate) fn refuses(original: &std::path::Path, name: &[u8]) -> bool {
    let switch = || {
        let label = original.file_name()?.to_str()?;
        let place = original.parent()?.parent()?;
        std::fs::read(place.join(format!("{label}.refuses"))).ok()
    };
    switch().is_some_and(|refused| refused == name)
}

/// Whether a file of this name cannot be replaced: the kernel says it, in what users get.
#[cfg(not(feature = "seeded-bugs"))]
pub(crate) const fn refuses(_original: &std::path::Path, _name: &[u8]) -> bool {
    false
}

/// How many steps a store took, which follows from the rows that it read: a line of the file that a test names when it goes.
#[cfg(feature = "seeded-bugs")]
pub(crate) struct Steps(
    Option<std::path::PathBuf>,
    std::sync::Arc<std::sync::atomic::AtomicU64>,
);

#[cfg(feature = "seeded-bugs")]
impl Steps {
    #[expect(
        clippy::disallowed_methods,
        reason = "a test-only switch, which must reach the program from outside"
    )]
    pub(crate) fn of(connection: &mut rusqlite::Connection) -> rusqlite::Result<Self> {
        let steps = Self(
            std::env::var_os("ESCROW_COUNT_STEPS").map(Into::into),
            std::sync::Arc::default(),
        );
        if steps.0.is_some() {
            let count = std::sync::Arc::clone(&steps.1);
            let step = move || {
                count.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                false
            };
            connection.progress_handler(1, Some(step))?;
        }
        Ok(steps)
    }
}

#[cfg(feature = "seeded-bugs")]
#[expect(clippy::disallowed_methods, reason = "only tests have it written")]
impl Drop for Steps {
    fn drop(&mut self) {
        use std::io::Write;
        if let Some(at) = &self.0 {
            let file = std::fs::OpenOptions::new()
                .append(true)
                .create(true)
                .open(at);
            let count = self.1.load(std::sync::atomic::Ordering::Relaxed);
            file.and_then(|mut file| writeln!(file, "{count}"))
                .expect("a test can count");
        }
    }
}

/// How many steps a store took: nobody asks, in what users get.
#[cfg(not(feature = "seeded-bugs"))]
pub(crate) struct Steps;

#[cfg(not(feature = "seeded-bugs"))]
impl Steps {
    pub(crate) const fn of(_connection: &mut rusqlite::Connection) -> rusqlite::Result<Self> {
        Ok(Self)
    }
}
