//! Strategies that do as the real one does, except where a test tells them to fail.
//!
//! Each wraps `filesystem_copy`. One that does not prepare copies the whole sandbox over the original
//! when it is committed, as something without transactions would.

use std::collections::HashMap;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use escrow::event::{Observer, Unobserved};
use escrow::internals::store::{Plan, Resource, Store};
use escrow::manager::{Manager, ManagerOptions, NewResource};
use escrow::model::digest::VersionDigests;
use escrow::model::{
    Change, Conflict, DiffView, ResourceId, ResourcePath, SandboxRef, SandboxState,
};
use escrow::strategy::registry::Registration;
use escrow::strategy::{
    Access, Capabilities, CreateRequest, Created, FinishedCommit, Intent, Outcome, PrepareRequest,
    Preview, PreviewOptions, Probe, Registry, RestoreRequest, Result, RollbackReport, Sandbox,
    Session, Snapshot, StagedCommit, Strategy, StrategyError, Target, unsupported,
};
use escrow_testkit::World;
use escrow_testkit::signature::{Sig, signature};
use escrow_testkit::tree::build;

use crate::support::{options, sh};

/// What a strategy is asked to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verb {
    Prepare,
    Commit,
    Finish,
    CheckUndo,
    Undo,
    Cleanup,
}

/// How it fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum How {
    /// Before anything is done.
    Before,
    /// When a part is done.
    Half,
    /// When all is done.
    After,
    /// By a panic, before anything is done.
    Panic,
    /// By a panic, when a part is done.
    PanicHalf,
}

/// What a strategy promises.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Undoable,
    /// It undoes, but does not prepare.
    Unprepared,
    /// It prepares, but what was carried out stays.
    Final,
    /// The same, and it does not know whether that happened.
    FinalBlind,
    Irreversible,
    /// The same, and it does not know whether that happened.
    Blind,
}

impl Kind {
    const ALL: [Self; 6] = [
        Self::Undoable,
        Self::Unprepared,
        Self::Final,
        Self::FinalBlind,
        Self::Irreversible,
        Self::Blind,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::Undoable => "faulty_undoable",
            Self::Unprepared => "faulty_unprepared",
            Self::Final => "faulty_final",
            Self::FinalBlind => "faulty_final_blind",
            Self::Irreversible => "faulty_irreversible",
            Self::Blind => "faulty_blind",
        }
    }

    pub(crate) fn prepares(self) -> bool {
        matches!(self, Self::Undoable | Self::Final | Self::FinalBlind)
    }

    pub(crate) fn undoes(self) -> bool {
        matches!(self, Self::Undoable | Self::Unprepared)
    }
}

/// What is to fail, and what was asked for, over all strategies of a world.
#[derive(Default)]
pub(crate) struct Script {
    pub(crate) faults: Mutex<Vec<(ResourceId, Verb, How)>>,
    calls: Mutex<Vec<(ResourceId, Verb)>>,
    pub(crate) originals: Mutex<HashMap<ResourceId, PathBuf>>,
    /// Whether a fault kills the process.
    pub(crate) kills: AtomicBool,
}

pub(crate) fn held<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A strategy that panics on purpose may hold it.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Script {
    /// From now on these fail, and nothing else.
    pub(crate) fn set(&self, faults: &[(&Part, Verb, How)]) {
        let fault = |(part, verb, how): &(&Part, Verb, How)| (part.resource.id, *verb, *how);
        *held(&self.faults) = faults.iter().map(fault).collect();
        held(&self.calls).clear();
    }

    /// In which order a verb was asked of the members.
    pub(crate) fn order(&self, wanted: Verb) -> Vec<ResourceId> {
        let calls = held(&self.calls);
        let found = calls.iter().filter(|(_, verb)| *verb == wanted);
        found.map(|(id, _)| *id).collect()
    }

    fn how(&self, sandbox: &SandboxRef, verb: Verb) -> Option<How> {
        held(&self.calls).push((sandbox.resource_id, verb));
        let faults = held(&self.faults);
        let found = faults
            .iter()
            .find(|(id, wanted, _)| (*id, *wanted) == (sandbox.resource_id, verb));
        found.map(|(_, _, how)| *how)
    }

    fn original(&self, sandbox: &SandboxRef) -> PathBuf {
        held(&self.originals)[&sandbox.resource_id].clone()
    }
}

/// What every injected fault says.
pub(crate) const SAID: &str = "an injected fault";

struct Faulty(Arc<Core>);

/// What a strategy and its sessions share.
struct Core {
    kind: Kind,
    script: Arc<Script>,
    inner: Arc<dyn Strategy>,
}

struct FaultySession {
    core: Arc<Core>,
    sandbox: SandboxRef,
    inner: Box<dyn Sandbox>,
}

/// An intent, with the sandbox it is of.
fn signed(sandbox: &SandboxRef, intent: &Intent) -> Intent {
    Intent(serde_json::json!({"of": sandbox, "intent": intent}))
}

/// The two again.
fn unsigned(intent: &Intent) -> (SandboxRef, Intent) {
    let part = |name: &str| intent.0[name].clone();
    let of = serde_json::from_value(part("of")).expect("it was put there");
    (of, Intent(part("intent")))
}

/// Gives up after one step.
struct OneStep(AtomicU64);

impl Observer for OneStep {
    fn copied(&self, entries: u64, _bytes: u64) {
        self.0.fetch_add(entries, Ordering::SeqCst);
    }

    fn is_cancelled(&self) -> bool {
        self.0.load(Ordering::SeqCst) > 0
    }
}

impl Core {
    fn fail<T>(&self, verb: Verb) -> Result<T> {
        if self.script.kills.load(Ordering::SeqCst) {
            let killed = rustix::process::kill_process(
                rustix::process::getpid(),
                rustix::process::Signal::KILL,
            );
            killed.expect("a process may kill itself");
        }
        Err(StrategyError::Damaged {
            what: format!("{SAID} in {verb:?}"),
        })
    }

    fn trip<T>(
        &self,
        sandbox: &SandboxRef,
        verb: Verb,
        work: impl FnOnce() -> Result<T>,
        half: impl FnOnce(),
    ) -> Result<T> {
        match self.script.how(sandbox, verb) {
            None => work(),
            Some(How::Before) => self.fail(verb),
            Some(How::Panic) => panic!("{SAID} in {verb:?}"),
            Some(How::After) => work().and_then(|_| self.fail(verb)),
            Some(How::Half) => {
                half();
                self.fail(verb)
            }
            Some(How::PanicHalf) => {
                half();
                panic!("{SAID} in {verb:?}");
            }
        }
    }

    fn tree(&self, sandbox: &SandboxRef) -> PathBuf {
        let session = self.inner.open(sandbox, Session::Shared, &[]);
        let access = session.and_then(|session| session.access());
        let tree = access.expect("a copy gives a path").cwd;
        tree.expect("a copy gives a path").as_path().to_owned()
    }

    /// Where one that does not prepare keeps what it overwrote.
    fn kept(&self, sandbox: &SandboxRef) -> PathBuf {
        self.script.original(sandbox).with_extension("kept")
    }

    fn overwrite(&self, sandbox: &SandboxRef, half: bool) {
        let (original, kept) = (self.script.original(sandbox), self.kept(sandbox));
        if self.kind.undoes() && !kept.exists() {
            sh(&original, &format!("cp -a . '{}'", kept.display()));
        }
        let script = match half {
            true => "rm -rf gone".to_owned(),
            false => format!(
                "find . -mindepth 1 -delete; cp -a '{}/.' .",
                self.tree(sandbox).display()
            ),
        };
        sh(&original, &script);
        if !half && !self.kind.undoes() {
            // Each time is one too many but the first.
            sh(
                &original,
                &format!("echo >> '{}'", sent(&original).display()),
            );
        }
    }
}

/// What an irreversible member did, a line each time.
pub(crate) fn sent(original: &Path) -> PathBuf {
    original.with_extension("sent")
}

/// Whether an original holds the new state, the old one, or neither.
pub(crate) fn outcome_of(original: &Path) -> Outcome {
    let new = std::fs::read(original.join("changed")).is_ok_and(|text| text == b"new text");
    match (new, original.join("gone").exists()) {
        (true, false) => Outcome::Done,
        (false, true) => Outcome::NotDone,
        _ => Outcome::Unknown,
    }
}

impl Strategy for Faulty {
    fn name(&self) -> &str {
        self.0.kind.name()
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            prepares: self.0.kind.prepares(),
            undoes: self.0.kind.undoes(),
            promises: false,
            ..self.0.inner.capabilities()
        }
    }

    fn probe(&self, target: &Target, area: Option<&Path>) -> Probe {
        self.0.inner.probe(target, area)
    }

    fn create(&self, request: &CreateRequest<'_>) -> Result<Created> {
        self.0.inner.create(request)
    }

    fn open(
        &self,
        sandbox: &SandboxRef,
        session: Session,
        parts: &[Intent],
    ) -> Result<Box<dyn Sandbox>> {
        let parts: Vec<Intent> = parts.iter().map(|part| unsigned(part).1).collect();
        Ok(Box::new(FaultySession {
            core: Arc::clone(&self.0),
            sandbox: sandbox.clone(),
            inner: self.0.inner.open(sandbox, session, &parts)?,
        }))
    }

    fn commit(&self, intent: &Intent, observer: &dyn Observer) -> Result<()> {
        let core = &self.0;
        let (sandbox, intent) = &unsigned(intent);
        let prepares = core.kind.prepares();
        let work = || match prepares {
            true => core.inner.commit(intent, observer),
            false => {
                core.overwrite(sandbox, false);
                Ok(())
            }
        };
        let half = || match prepares {
            true => {
                let observer = OneStep(AtomicU64::new(0));
                let answer = core.inner.commit(intent, &observer);
                answer.expect_err("it has more than one step");
            }
            false => core.overwrite(sandbox, true),
        };
        core.trip(sandbox, Verb::Commit, work, half)
    }

    fn undo(&self, intent: &Intent, observer: &dyn Observer) -> Result<RollbackReport> {
        let core = &self.0;
        let (sandbox, intent) = &unsigned(intent);
        let carried = outcome_of(&core.script.original(sandbox)) == Outcome::Done;
        let work = || match core.kind {
            Kind::Undoable => core.inner.undo(intent, observer),
            Kind::Unprepared => {
                let kept = core.kept(sandbox);
                if kept.exists() {
                    let from = kept.display();
                    let back =
                        format!("find . -mindepth 1 -delete; cp -a '{from}/.' .; rm -r '{from}'");
                    sh(core.script.original(sandbox), &back);
                }
                Ok(RollbackReport::default())
            }
            // What was only prepared can be released.
            Kind::Final | Kind::FinalBlind if !carried => core.inner.undo(intent, observer),
            _ => {
                let why = "what it did is done";
                Err(unsupported(core.kind.name(), "undo a commit", why))
            }
        };
        core.trip(sandbox, Verb::Undo, work, || {})
    }

    fn outcome(&self, intent: &Intent) -> Result<Outcome> {
        let (sandbox, intent) = unsigned(intent);
        if !intent.0.is_null() {
            self.0.inner.outcome(&intent)?;
        }
        let found = outcome_of(&self.0.script.original(&sandbox));
        Ok(match (self.0.kind, found) {
            (Kind::Blind | Kind::FinalBlind, _) => Outcome::Unknown,
            // What is half done is finished by calling again.
            (Kind::Final, Outcome::Unknown) => Outcome::NotDone,
            (_, outcome) => outcome,
        })
    }

    fn check_undo(&self, intent: &Intent) -> Result<Vec<Conflict>> {
        let (sandbox, intent) = &unsigned(intent);
        let work = || match intent.0.is_null() {
            true => Ok(Vec::new()),
            false => self.0.inner.check_undo(intent),
        };
        self.0.trip(sandbox, Verb::CheckUndo, work, || {})
    }

    fn finish(&self, intent: Intent) -> Result<FinishedCommit> {
        let (sandbox, intent) = unsigned(&intent);
        let work = || {
            if intent.0.is_null() {
                let (intent, notes) = (signed(&sandbox, &intent), Vec::new());
                return Ok(FinishedCommit { intent, notes });
            }
            let finished = self.0.inner.finish(intent.clone())?;
            let intent = signed(&sandbox, &finished.intent);
            Ok(FinishedCommit { intent, ..finished })
        };
        self.0.trip(&sandbox, Verb::Finish, work, || {})
    }

    fn cleanup(&self, sandbox: &SandboxRef, target: &Target, area: Option<&Path>) -> Result<()> {
        let work = || self.0.inner.cleanup(sandbox, target, area);
        self.0.trip(sandbox, Verb::Cleanup, work, || {})
    }
}

impl Sandbox for FaultySession {
    fn read(&self, path: &ResourcePath) -> Result<Box<dyn Read + Send>> {
        self.inner.read(path)
    }

    fn write(&self, path: &ResourcePath, content: &mut dyn Read) -> Result<Change> {
        self.inner.write(path, content)
    }

    fn diff(&self, from: Option<&Snapshot>, to: Option<&Snapshot>) -> Result<DiffView> {
        self.inner.diff(from, to)
    }

    fn digests(&self, changes: &[Change]) -> Result<VersionDigests> {
        self.inner.digests(changes)
    }

    fn rollback(&self, observer: &dyn Observer) -> Result<String> {
        self.inner.rollback(observer)
    }

    fn checkpoint(&self, parent: Option<&Snapshot>, observer: &dyn Observer) -> Result<Snapshot> {
        self.inner.checkpoint(parent, observer)
    }

    fn retain(&self, keep: &[Snapshot]) -> Result<Vec<Snapshot>> {
        self.inner.retain(keep)
    }

    fn preview(&self, options: &PreviewOptions) -> Result<Preview> {
        if self.core.kind.prepares() {
            return self.inner.preview(options);
        }
        Ok(Preview {
            diff: Arc::new(self.inner.diff(None, None)?),
            ..Preview::default()
        })
    }

    fn prepare(&self, request: &PrepareRequest<'_>) -> Result<StagedCommit> {
        let sign = |staged: StagedCommit| StagedCommit {
            intent: signed(&self.sandbox, &staged.intent),
            ..staged
        };
        if !self.core.kind.prepares() {
            return Ok(sign(StagedCommit::default()));
        }
        let half = || {
            let request = PrepareRequest {
                observer: &OneStep(AtomicU64::new(0)),
                ..*request
            };
            let answer = self.inner.prepare(&request);
            answer.expect_err("it has more than one step");
        };
        let work = || self.inner.prepare(request).map(sign);
        self.core.trip(&self.sandbox, Verb::Prepare, work, half)
    }

    fn prepare_restore(&self, request: &RestoreRequest<'_>) -> Result<Intent> {
        Ok(signed(&self.sandbox, &self.inner.prepare_restore(request)?))
    }

    fn access(&self) -> Result<Access> {
        self.inner.access()
    }
}

/// One member of a plan.
pub(crate) struct Part {
    pub(crate) resource: Resource,
    pub(crate) original: PathBuf,
    pub(crate) kind: Kind,
    /// The original before anything.
    pub(crate) before: Sig,
}

/// A plan of several members, each of them edited.
pub(crate) struct Batch {
    pub(crate) manager: Manager,
    pub(crate) plan: Plan,
    pub(crate) parts: Vec<Part>,
    pub(crate) script: Arc<Script>,
}

const BASE: &str = r#"
gone "goes away"
changed 0640 "old"
dir/inner "inner"
dir/sub/deep "deep"
closing/file "file"
link -> changed
"#;

/// Changes of every kind; more than one step.
const EDITS: &str = "rm gone; printf 'new text' > changed; mkdir -p added/deep; \
     printf more > added/deep/file; chmod 0751 closing; rm -r dir/sub; printf x > dir/inner2; \
     ln -sfn nowhere link; touch -d '2002-02-02 02:02:02.2 UTC' changed added dir";

fn registry(script: &Arc<Script>) -> Registry {
    let mut registry = Registry::builtin();
    let inner = Arc::clone(registry.get("filesystem_copy").expect("it is built in"));
    for kind in Kind::ALL {
        let faulty = Faulty(Arc::new(Core {
            kind,
            script: Arc::clone(script),
            inner: Arc::clone(&inner),
        }));
        let registered = registry.register(Registration::new(Arc::new(faulty)));
        registered.expect("nobody else has the name");
    }
    registry
}

/// A manager that knows the strategies that fail.
pub(crate) fn open(home: &Path, script: &Arc<Script>) -> Manager {
    let options = ManagerOptions {
        registry: registry(script),
        ..options(home)
    };
    Manager::open(options).expect("it opens on a fresh or used home")
}

impl Batch {
    /// A plan with one edited sandbox for each kind; `parents` says which lies in which, by number.
    pub(crate) fn new(
        world: &World,
        name: &str,
        kinds: &[Kind],
        parents: &[Option<usize>],
    ) -> Self {
        Self::sharing(world, name, kinds, parents, &Arc::default())
    }

    /// The same, with a script that others use as well.
    pub(crate) fn sharing(
        world: &World,
        name: &str,
        kinds: &[Kind],
        parents: &[Option<usize>],
        script: &Arc<Script>,
    ) -> Self {
        let script = Arc::clone(script);
        let manager = open(&world.home(), &script);
        let view = manager.create_plan(Some(name), world.path(), &[], None, &Unobserved);
        let plan = view.expect("a plan needs no resource").plan;
        let mut batch = Self {
            manager,
            plan,
            parts: Vec::new(),
            script,
        };
        for (number, kind) in kinds.iter().enumerate() {
            let parent = parents.get(number).copied().flatten();
            batch.add(world, &format!("{name}-m{number}"), *kind, parent);
        }
        batch
    }

    fn add(&mut self, world: &World, name: &str, kind: Kind, parent: Option<usize>) {
        let original = world.dir(name);
        build(&original, BASE);
        sh(
            &original,
            "setfattr -n user.odd -v 'a b' changed; \
             find . -exec touch -hd '1995-05-06 07:08:09.123' {} +",
        );
        let before = signature(&original);
        let parent = parent.map(|number| self.parts[number].resource.name.clone());
        let new = NewResource {
            name,
            kind: Some("fs-directory"),
            at: &original,
            parent: parent.as_deref(),
            strategy: Some("filesystem_copy"),
            allow_root: false,
        };
        let resource = self.manager.add_resource(&new).expect("it is a directory");
        held(&self.script.originals).insert(resource.id, original.clone());
        let made = self
            .manager
            .create_sandbox(&self.plan, &resource, None, &Unobserved)
            .expect("a copy works everywhere");
        self.adopt(made.view.sandbox, kind);
        let part = Part {
            resource,
            original,
            kind,
            before,
        };
        sh(self.tree(&part), EDITS);
        self.parts.push(part);
    }

    /// Hands a sandbox over to the strategy that fails. The type of a directory takes no strategy
    /// of others, so it cannot be asked for by name.
    fn adopt(&self, mut sandbox: escrow::internals::store::SandboxRecord, kind: Kind) {
        let store = Store::open(&self.manager.home().join("state.db")).expect("it is ours");
        sandbox.reference.strategy_name = kind.name().to_owned();
        store.put_sandboxes(&[sandbox]).expect("it can be recorded");
    }

    pub(crate) fn tree(&self, part: &Part) -> PathBuf {
        let access = self.manager.access(&self.plan, &part.resource, None);
        let tree = access.expect("a copy gives a path").cwd;
        tree.expect("a copy gives a path").as_path().to_owned()
    }

    /// The changes of one member, as text.
    pub(crate) fn changes(&self, part: &Part) -> String {
        let diffs = self
            .manager
            .diff(&self.plan, Some(&part.resource))
            .expect("it can be compared");
        format!("{:?}", diffs.resources[0].diff)
    }

    pub(crate) fn states(&self) -> Vec<SandboxState> {
        let view = self.manager.view(self.plan.clone());
        let sandboxes = view.expect("it can be shown").sandboxes;
        sandboxes.iter().map(|view| view.sandbox.state).collect()
    }

    /// The members in the order in which they must be committed; of equals, as they were made.
    pub(crate) fn ranked(&self) -> Vec<&Part> {
        let mut ranked: Vec<&Part> = self.parts.iter().collect();
        ranked.sort_by_key(|part| match part.kind {
            Kind::Undoable | Kind::Unprepared => 0,
            Kind::Irreversible | Kind::Blind => 1,
            Kind::Final | Kind::FinalBlind => 2,
        });
        ranked
    }

    /// The same plan, as another process finds it.
    pub(crate) fn again(&self) -> Manager {
        open(self.manager.home(), &self.script)
    }
}
