//! A strategy of one's own in Rust, in the process of the engine: full copies, of directories with few entries only.
//!
//! It takes what it needs from a strategy that there is, and says yes or no by itself. One that keeps something else entirely has the same methods, and
//! a [`Sandbox`] of its own.
//!
//! ```text
//! cargo run -p escrow --example own_strategy -- DIRECTORY
//! ```
#![allow(
    clippy::disallowed_methods,
    reason = "it looks at real files as its user would"
)]

use std::path::Path;
use std::sync::Arc;

use escrow::event::Observer;
use escrow::model::{Conflict, SandboxRef};
use escrow::strategy::registry::{Registration, Registry};
use escrow::strategy::{
    Capabilities, CreateRequest, Created, FinishedCommit, Intent, Outcome, Probe, Result,
    RollbackReport, Sandbox, Session, Strategy, Target,
};
use escrow::{CommitRequest, Escrow, ResourcePath, Unobserved};

/// Full copies of directories that have at most so many entries.
pub(crate) struct SmallCopy {
    pub(crate) copies: Arc<dyn Strategy>,
    pub(crate) most: usize,
}

#[rustfmt::skip]
impl Strategy for SmallCopy {
    fn name(&self) -> &str { "small_copy" }
    fn capabilities(&self) -> Capabilities { self.copies.capabilities() }

    fn probe(&self, target: &Target, area: Option<&Path>) -> Probe {
        let entries = target.path().and_then(|path| std::fs::read_dir(path).ok());
        match entries.map(Iterator::count) {
            Some(count) if count <= self.most => self.copies.probe(target, area),
            _ => Probe::no(format!("it is no directory of at most {} entries", self.most)),
        }
    }

    fn create(&self, request: &CreateRequest<'_>) -> Result<Created> {
        let mut created = self.copies.create(request)?;
        // What refers to the sandbox names the strategy that understands it.
        created.sandbox.strategy_name = self.name().to_owned();
        Ok(created)
    }

    fn open(&self, sandbox: &SandboxRef, session: Session, parts: &[Intent]) -> Result<Box<dyn Sandbox>> {
        self.copies.open(sandbox, session, parts)
    }

    fn promise(&self, intent: &Intent) -> Result<()> { self.copies.promise(intent) }
    fn commit(&self, intent: &Intent, observer: &dyn Observer) -> Result<()> { self.copies.commit(intent, observer) }
    fn undo(&self, intent: &Intent, observer: &dyn Observer) -> Result<RollbackReport> { self.copies.undo(intent, observer) }
    fn outcome(&self, intent: &Intent) -> Result<Outcome> { self.copies.outcome(intent) }
    fn check_undo(&self, intent: &Intent) -> Result<Vec<Conflict>> { self.copies.check_undo(intent) }
    fn finish(&self, intent: Intent) -> Result<FinishedCommit> { self.copies.finish(intent) }
    fn cleanup(&self, sandbox: &SandboxRef, target: &Target, area: Option<&Path>) -> Result<()> {
        self.copies.cleanup(sandbox, target, area)
    }
}

/// The strategies that come with the engine, and this one.
pub(crate) fn registry(most: usize) -> Registry {
    let mut registry = Registry::builtin();
    let copies = registry
        .get("filesystem_copy")
        .expect("it comes with the engine");
    let copies = Arc::clone(copies);
    let own = Registration::new(Arc::new(SmallCopy { copies, most }));
    registry
        .register(own)
        .expect("the name is free, and it has every verb");
    registry
}

/// A plan of a directory that has this strategy, from its beginning to the undo of its commit.
pub(crate) fn story(directory: &Path) -> std::result::Result<(), Box<dyn std::error::Error>> {
    let project = directory.join("project");
    std::fs::create_dir(&project)?;
    std::fs::write(project.join("file"), "old\n")?;
    let configuration = directory.join("escrow.yaml");
    let kind = "{ name: small, location: path, sandbox_strategy: small_copy }";
    let app = "{ at: project, type: small }";
    let text = format!("resource_types: [{kind}]\nresources: {{ app: {app} }}\n");
    std::fs::write(&configuration, text)?;
    let escrow = Escrow::builder().home(directory.join("state"));
    let escrow = escrow.config(&configuration).registry(registry(10));
    let escrow = escrow.open()?;
    let made = escrow.create_plan(Some("try"), directory, &["app".into()], None, &Unobserved)?;
    let (plan, sandbox) = (&made.plan, &made.sandboxes[0]);
    assert_eq!(sandbox.sandbox.reference.strategy_name, "small_copy");
    let file = ResourcePath::parse(b"file")?;
    escrow.write(plan, &sandbox.resource, &file, &mut &b"new\n"[..])?;
    assert_eq!(std::fs::read_to_string(project.join("file"))?, "old\n");
    escrow.commit(plan, &CommitRequest::default(), &Unobserved)?;
    assert_eq!(std::fs::read_to_string(project.join("file"))?, "new\n");
    escrow.undo(plan, &Unobserved)?;
    assert_eq!(std::fs::read_to_string(project.join("file"))?, "old\n");
    Ok(())
}

#[allow(dead_code, reason = "a test calls the story by itself")]
fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let directory = std::env::args_os()
        .nth(1)
        .ok_or("an empty directory is needed")?;
    story(Path::new(&directory))
}
