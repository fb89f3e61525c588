//! The conformance checks. Each is one function from a strategy and a case to a problem.

use std::cell::RefCell;
use std::fmt::Debug;
use std::io::{Cursor, Read};

use super::super::{
    CreateRequest, Exposes, Intent, OnConflict, PrepareRequest, PreviewOptions, Sandbox, Session,
    Strategy, StrategyError,
};
use super::{Case, checkpoints, parts};
use crate::event::Unobserved;
use crate::model::{ChangeKind, PlanId, ResourcePath, SandboxRef, SystemIdSource};

pub(super) type CheckFn = fn(&dyn Strategy, &dyn Case) -> CheckOutcome;
pub(super) type CheckOutcome = Result<(), String>;

pub(super) const ALL: &[(&str, CheckFn)] = &[
    ("its name and its promises do not change", steady),
    ("a probe leaves nothing behind", probe),
    ("create leaves the original alone", create),
    ("create in the same area begins anew", create_again),
    (
        "a fresh sandbox shows the original, without a difference",
        fresh,
    ),
    ("reading changes nothing", reading),
    ("what cannot be read is refused", unreadable),
    ("nothing leads out of the resource", ways_out),
    ("what is written is read back", writing),
    (
        "the original is untouched by writing, or the strategy says so",
        isolation,
    ),
    ("the diff lists what was written and nothing else", diff),
    ("the same bytes written again are no change", same_bytes),
    ("a write that breaks off changes nothing", broken_write),
    (
        "rollback discards everything, again and again, or says it cannot",
        rollback,
    ),
    (
        "what is prepared has not touched the original, and can be dropped",
        prepared,
    ),
    (
        "a commit releases what was written, as often as it is repeated",
        committed,
    ),
    (
        "an undo brings the original back, again and again, or says it cannot",
        undone,
    ),
    (
        "a sandbox that stays after its commit shares nothing with the original",
        apart,
    ),
    (
        "a change by another program is a conflict, and nothing else is",
        conflicts,
    ),
    (
        "a part is all that is released, and the rest all that stays, or it says it cannot",
        parts::released,
    ),
    (
        "a part is no conflict for what follows, and both are the whole",
        parts::followed,
    ),
    (
        "later changes of a released path are compared with the release",
        parts::worked_on,
    ),
    (
        "a part that is undone leaves no trace, and is the sandbox's again",
        parts::taken_back,
    ),
    (
        "a part that is aborted, at whichever step, changes nothing",
        parts::given_up,
    ),
    (
        "after a part a rollback discards the rest and nothing else",
        parts::discarded,
    ),
    (
        "a restore brings a checkpoint back, again and again, or it says it cannot",
        checkpoints::restored,
    ),
    ("the reference is enough for another process", reference),
    ("access keeps its word", access),
    (
        "another directory in the original's place is noticed",
        replaced,
    ),
    (
        "cleanup can be repeated and leaves the original alone",
        cleanup,
    ),
];

pub(super) fn must<T, E: std::error::Error>(what: &str, answer: Result<T, E>) -> Result<T, String> {
    answer.map_err(|error| {
        let mut text = format!("{what}: {error}");
        let mut cause = error.source();
        while let Some(error) = cause {
            text = format!("{text}: {error}");
            cause = error.source();
        }
        text
    })
}

pub(super) fn equal<T: PartialEq + Debug>(what: &str, found: &T, wanted: &T) -> CheckOutcome {
    match found == wanted {
        true => Ok(()),
        false => Err(format!("{what}: {found:?}, wanted {wanted:?}")),
    }
}

/// A kind of change as the suite speaks of it: a row comes and changes as a file does.
fn plain(kind: ChangeKind) -> ChangeKind {
    match kind {
        ChangeKind::Inserted => ChangeKind::Added,
        ChangeKind::Updated => ChangeKind::Modified,
        other => other,
    }
}

/// A sandbox of a case.
pub(super) struct Subject<'a> {
    pub(super) strategy: &'a dyn Strategy,
    pub(super) case: &'a dyn Case,
    pub(super) sandbox: SandboxRef,
    /// The partial commits that stand, as the caller of a strategy knows them.
    pub(super) standing: RefCell<Vec<Intent>>,
}

/// What a strategy keeps outside the area goes with it.
impl Drop for Subject<'_> {
    fn drop(&mut self) {
        // Whether it can is a check of its own.
        let target = self.case.target();
        match self.strategy.cleanup(&self.sandbox, &target, None) {
            Ok(()) | Err(_) => {}
        }
    }
}

impl<'a> Subject<'a> {
    pub(super) fn made(strategy: &'a dyn Strategy, case: &'a dyn Case) -> Result<Self, String> {
        let created = strategy.create(&CreateRequest {
            plan_id: PlanId::new(&SystemIdSource),
            target: &case.target(),
            area: case.area(),
            from: None,
            observer: &Unobserved,
        });
        Ok(Self {
            strategy,
            case,
            sandbox: must("create", created)?.sandbox,
            standing: RefCell::default(),
        })
    }

    /// A sandbox in which one thing was changed and one was made.
    pub(super) fn worked_in(
        strategy: &'a dyn Strategy,
        case: &'a dyn Case,
    ) -> Result<Self, String> {
        let it = Self::made(strategy, case)?;
        it.put(&case.known().0, b"changed")?;
        it.put_new(b"new")?;
        Ok(it)
    }

    /// A session that changes the sandbox.
    pub(super) fn open(&self) -> Result<Box<dyn Sandbox>, String> {
        must("open", self.session(Session::Exclusive))
    }

    /// A session that only looks.
    fn look(&self) -> Result<Box<dyn Sandbox>, String> {
        must("open", self.session(Session::Shared))
    }

    fn session(&self, session: Session) -> Result<Box<dyn Sandbox>, StrategyError> {
        let standing = self.standing.borrow();
        self.strategy.open(&self.sandbox, session, &standing)
    }

    pub(super) fn content(&self, path: &ResourcePath) -> Result<Vec<u8>, String> {
        let mut bytes = Vec::new();
        let mut file = must("read", self.look()?.read(path))?;
        must("read", file.read_to_end(&mut bytes))?;
        self.case.decode(bytes)
    }

    /// Whether these bytes are read at a path.
    pub(super) fn holds(&self, path: &ResourcePath, wanted: &[u8]) -> CheckOutcome {
        equal("content", &&self.content(path)?[..], &wanted)
    }

    pub(super) fn put(&self, path: &ResourcePath, bytes: &[u8]) -> Result<ChangeKind, String> {
        let bytes = self.case.encode(path, bytes);
        let written = self.open()?.write(path, &mut Cursor::new(bytes));
        let change = must("write", written)?;
        equal("path of the change", &change.path, path)?;
        Ok(plain(change.kind))
    }

    /// Writes what is not there yet, where there can be such a thing.
    pub(super) fn put_new(&self, bytes: &[u8]) -> CheckOutcome {
        match self.case.absent() {
            Some(path) => self.put(&path, bytes).map(drop),
            None => Ok(()),
        }
    }

    pub(super) fn changes(&self) -> Result<Vec<(String, ChangeKind)>, String> {
        let view = must("diff", self.look()?.diff(None, None))?;
        let changes = view.changes.iter();
        Ok(changes
            .map(|change| (change.path.to_string(), plain(change.kind)))
            .collect())
    }

    pub(super) fn no_changes(&self) -> CheckOutcome {
        equal("changes", &self.changes()?, &Vec::new())
    }

    pub(super) fn rollback(&self) -> Result<String, StrategyError> {
        self.session(Session::Exclusive)?.rollback(&Unobserved)
    }

    /// Nothing can be read or written at these paths.
    fn refuses(&self, paths: Vec<ResourcePath>) -> CheckOutcome {
        for path in paths {
            let opened = self.open()?;
            if opened.read(&path).is_ok() {
                return Err(format!("'{path}' can be read"));
            }
            if opened.write(&path, &mut Cursor::new(b"x")).is_ok() {
                return Err(format!("'{path}' can be written"));
            }
        }
        Ok(())
    }

    /// Whether the sandbox shows what is in the original.
    fn shows_the_original(&self) -> CheckOutcome {
        for (path, wanted) in self.case.contents()? {
            if self.content(&path)? != wanted {
                return Err(format!("'{path}' is another one than in the original"));
            }
        }
        self.no_changes()
    }

    /// What a commit of the sandbox needs, staged; `keeps` says whether the sandbox is to stay.
    pub(super) fn staged(&self, keeps: bool) -> Result<Intent, String> {
        let opened = self.open()?;
        let preview = must("preview", opened.preview(&PreviewOptions::default()))?;
        equal("conflicts", &preview.conflicts, &Vec::new())?;
        let area = self.case.commit_area()?;
        let request = PrepareRequest {
            preview: &preview,
            on_conflict: OnConflict::Abort,
            message: Some("as the suite commits"),
            area: area.as_deref(),
            keeps,
            digests: true,
            promised: &[],
            observer: &Unobserved,
        };
        let mut staged = must("prepare", opened.prepare(&request))?;
        let mut found = must("digests", opened.digests(&preview.diff.changes))?;
        found.sort_by(|a, b| a.0.cmp(&b.0));
        staged.digests.sort_by(|a, b| a.0.cmp(&b.0));
        equal("the digests of what is staged", &staged.digests, &found)?;
        Ok(staged.intent)
    }
}

pub(super) fn unchanged(case: &dyn Case, before: &str) -> CheckOutcome {
    match case.fingerprint()? == before {
        true => Ok(()),
        false => Err("the original is not what it was".to_owned()),
    }
}

fn steady(strategy: &dyn Strategy, _case: &dyn Case) -> CheckOutcome {
    equal("name", &strategy.name(), &strategy.name())?;
    equal(
        "capabilities",
        &strategy.capabilities(),
        &strategy.capabilities(),
    )?;
    match strategy.name().is_empty() {
        true => Err("it has no name".to_owned()),
        false => Ok(()),
    }
}

fn probe(strategy: &dyn Strategy, case: &dyn Case) -> CheckOutcome {
    let before = case.fingerprint()?;
    let (target, area) = (case.target(), case.area());
    let first = strategy.probe(&target, area);
    equal("a second probe", &strategy.probe(&target, area), &first)?;
    if first.reason.is_empty() {
        return Err("it gives no reason".to_owned());
    }
    equal("entries left in the area", &case.area_entries()?, &0)?;
    unchanged(case, &before)
}

fn create(strategy: &dyn Strategy, case: &dyn Case) -> CheckOutcome {
    let before = case.fingerprint()?;
    let it = Subject::made(strategy, case)?;
    equal(
        "strategy in the reference",
        &it.sandbox.strategy_name.as_str(),
        &strategy.name(),
    )?;
    unchanged(case, &before)
}

fn create_again(strategy: &dyn Strategy, case: &dyn Case) -> CheckOutcome {
    let first = Subject::made(strategy, case)?;
    if strategy.capabilities().isolates {
        first.put(&case.known().0, b"from the first")?;
        first.put_new(b"from the first")?;
    }
    Subject::made(strategy, case)?.no_changes()
}

fn fresh(strategy: &dyn Strategy, case: &dyn Case) -> CheckOutcome {
    let it = Subject::made(strategy, case)?;
    it.shows_the_original()
}

fn reading(strategy: &dyn Strategy, case: &dyn Case) -> CheckOutcome {
    let it = Subject::made(strategy, case)?;
    let before = case.fingerprint()?;
    it.content(&case.known().0)?;
    it.changes()?;
    it.no_changes()?;
    unchanged(case, &before)
}

fn unreadable(strategy: &dyn Strategy, case: &dyn Case) -> CheckOutcome {
    let it = Subject::made(strategy, case)?;
    if let Some(absent) = case.absent() {
        match it.open()?.read(&absent) {
            Err(StrategyError::NotThere { .. }) => {}
            Err(other) => return Err(format!("what is not there is refused with: {other}")),
            Ok(_) => return Err("what is not there can be read".to_owned()),
        }
    }
    it.refuses(case.obstacles())?;
    it.no_changes()
}

fn ways_out(strategy: &dyn Strategy, case: &dyn Case) -> CheckOutcome {
    let it = Subject::made(strategy, case)?;
    let before = case.fingerprint()?;
    it.refuses(case.ways_out())?;
    unchanged(case, &before)
}

fn writing(strategy: &dyn Strategy, case: &dyn Case) -> CheckOutcome {
    let it = Subject::made(strategy, case)?;
    let (known, absent) = (case.known().0, case.absent());
    let new = absent.iter().map(|path| (path, ChangeKind::Added));
    for (path, wanted) in [(&known, ChangeKind::Modified)].into_iter().chain(new) {
        equal("kind", &it.put(path, b"first\n")?, &wanted)?;
        it.holds(path, b"first\n")?;
        let again = it.put(path, b"second, longer\0\xff")?;
        equal("kind of a second write", &again, &ChangeKind::Modified)?;
        it.holds(path, b"second, longer\0\xff")?;
        it.put(path, b"")?;
        equal("content", &it.content(path)?, &Vec::new())?;
    }
    Ok(())
}

fn isolation(strategy: &dyn Strategy, case: &dyn Case) -> CheckOutcome {
    let it = Subject::made(strategy, case)?;
    let before = case.fingerprint()?;
    it.put(&case.known().0, b"changed")?;
    it.put_new(b"new")?;
    let touched = case.fingerprint()? != before;
    match (strategy.capabilities().isolates, touched) {
        (true, true) => Err("it says that it isolates, and the original changed".to_owned()),
        (false, false) => {
            Err("it says that it does not isolate, and nothing was written".to_owned())
        }
        _ => Ok(()),
    }
}

fn diff(strategy: &dyn Strategy, case: &dyn Case) -> CheckOutcome {
    if !strategy.capabilities().isolates {
        // Sandbox and original are one thing.
        let it = Subject::made(strategy, case)?;
        it.put(&case.known().0, b"changed")?;
        return it.no_changes();
    }
    let it = Subject::made(strategy, case)?;
    it.put(&case.known().0, b"changed, and of another length")?;
    it.put_new(b"new")?;
    let mut wanted = vec![(case.known().0.to_string(), ChangeKind::Modified)];
    for path in case.on_the_way().into_iter().chain(case.absent()) {
        wanted.push((path.to_string(), ChangeKind::Added));
    }
    wanted.sort();
    let mut found = it.changes()?;
    found.sort();
    equal("changes", &found, &wanted)
}

fn same_bytes(strategy: &dyn Strategy, case: &dyn Case) -> CheckOutcome {
    let it = Subject::made(strategy, case)?;
    let (path, bytes) = case.known();
    it.put(&path, b"something else")?;
    it.put(&path, &bytes)?;
    it.no_changes()?;
    // Of the same length: neither size nor time gives it away.
    let other: Vec<u8> = bytes.iter().map(|byte| byte ^ 1).collect();
    it.put(&path, &other)?;
    let wanted = match strategy.capabilities().isolates {
        true => vec![(path.to_string(), ChangeKind::Modified)],
        false => Vec::new(),
    };
    equal("changes", &it.changes()?, &wanted)
}

/// Bytes that end in an error.
struct BrokenReader(bool);

impl Read for BrokenReader {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        match std::mem::replace(&mut self.0, true) {
            true => Err(std::io::ErrorKind::ConnectionReset.into()),
            false => {
                buffer[0] = b'x';
                Ok(1)
            }
        }
    }
}

fn broken_write(strategy: &dyn Strategy, case: &dyn Case) -> CheckOutcome {
    let it = Subject::made(strategy, case)?;
    let (path, bytes) = case.known();
    match it.open()?.write(&path, &mut BrokenReader(false)) {
        Err(StrategyError::Input { .. }) => {}
        Err(other) => return Err(format!("the error blames another than the source: {other}")),
        Ok(_) => return Err("a write without its bytes succeeded".to_owned()),
    }
    equal("content", &it.content(&path)?, &bytes)?;
    it.no_changes()
}

fn rollback(strategy: &dyn Strategy, case: &dyn Case) -> CheckOutcome {
    let it = Subject::made(strategy, case)?;
    if !strategy.capabilities().isolates {
        return match it.rollback() {
            Err(StrategyError::Unsupported { .. }) => Ok(()),
            Err(other) => Err(format!("it cannot roll back, but says: {other}")),
            Ok(_) => Err("it claims to have discarded what it never isolated".to_owned()),
        };
    }
    let before = case.fingerprint()?;
    for _ in 0..2 {
        it.put(&case.known().0, b"changed")?;
        it.put_new(b"new")?;
        for _ in 0..2 {
            must("rollback", it.rollback())?;
            it.shows_the_original()?;
        }
    }
    unchanged(case, &before)
}

fn prepared(strategy: &dyn Strategy, case: &dyn Case) -> CheckOutcome {
    let capabilities = strategy.capabilities();
    if !capabilities.isolates || !capabilities.prepares {
        return Ok(());
    }
    let before = case.fingerprint()?;
    let it = Subject::worked_in(strategy, case)?;
    let changed = it.changes()?;
    let intent = it.staged(false)?;
    unchanged(case, &before)?;
    equal("changes", &it.changes()?, &changed)?;
    // The intent must survive being stored.
    let text = must("store the intent", serde_json::to_string(&intent))?;
    equal(
        "the intent read back",
        &must("read it back", serde_json::from_str::<Intent>(&text))?,
        &intent,
    )?;
    if capabilities.undoes {
        must("drop", strategy.undo(&intent, &Unobserved))?;
        unchanged(case, &before)?;
        equal("changes", &it.changes()?, &changed)?;
    }
    Ok(())
}

/// Everything readable in the original once the sandbox of [`Subject::worked_in`] is committed.
pub(super) fn expected(case: &dyn Case) -> Result<Vec<(ResourcePath, Vec<u8>)>, String> {
    let mut wanted = case.contents()?;
    wanted.retain(|(path, _)| *path != case.known().0 && Some(path) != case.absent().as_ref());
    wanted.push((case.known().0, b"changed".to_vec()));
    wanted.extend(case.absent().map(|path| (path, b"new".to_vec())));
    wanted.sort();
    Ok(wanted)
}

pub(super) fn sorted(case: &dyn Case) -> Result<Vec<(ResourcePath, Vec<u8>)>, String> {
    let mut found = case.contents()?;
    found.sort();
    Ok(found)
}

fn committed(strategy: &dyn Strategy, case: &dyn Case) -> CheckOutcome {
    let wanted = expected(case)?;
    let it = Subject::worked_in(strategy, case)?;
    let intent = it.staged(false)?;
    for _ in 0..2 {
        must("commit", strategy.commit(&intent, &Unobserved))?;
        if sorted(case)? != wanted {
            return Err("the original does not hold what was committed".to_owned());
        }
    }
    Ok(())
}

fn undone(strategy: &dyn Strategy, case: &dyn Case) -> CheckOutcome {
    let before = sorted(case)?;
    let it = Subject::worked_in(strategy, case)?;
    let intent = it.staged(false)?;
    must("commit", strategy.commit(&intent, &Unobserved))?;
    let undo = || strategy.undo(&intent, &Unobserved);
    if !strategy.capabilities().undoes {
        return match undo() {
            Err(StrategyError::Unsupported { .. }) => Ok(()),
            Err(other) => Err(format!("it cannot undo, but says: {other}")),
            Ok(_) => Err("it claims to have undone what it cannot undo".to_owned()),
        };
    }
    equal(
        "conflicts of an undo",
        &must("check", strategy.check_undo(&intent))?,
        &Vec::new(),
    )?;
    for _ in 0..2 {
        must("undo", undo())?;
        if sorted(case)? != before {
            return Err("the original is not what it was".to_owned());
        }
    }
    Ok(())
}

fn apart(strategy: &dyn Strategy, case: &dyn Case) -> CheckOutcome {
    let capabilities = strategy.capabilities();
    if !capabilities.isolates || !capabilities.prepares {
        return Ok(());
    }
    let it = Subject::worked_in(strategy, case)?;
    let intent = it.staged(true)?;
    must("commit", strategy.commit(&intent, &Unobserved))?;
    must("finish", strategy.finish(intent))?;
    let before = case.fingerprint()?;
    let access = must("access", it.open()?.access())?;
    if strategy.capabilities().exposes != Exposes::Nothing {
        case.work_through(&access, &case.known().0, b"later")?;
    }
    unchanged(case, &before)
}

fn conflicts(strategy: &dyn Strategy, case: &dyn Case) -> CheckOutcome {
    let capabilities = strategy.capabilities();
    if !capabilities.isolates || !capabilities.prepares {
        return Ok(());
    }
    let it = Subject::worked_in(strategy, case)?;
    let changed = case.change_original(&case.known().0, b"by somebody else");
    if case.is_locked() {
        let locked = "another program changed what the sandbox keeps locked";
        return changed.map_or_else(|_| Ok(()), |()| Err(locked.to_owned()));
    }
    changed?;
    let opened = it.open()?;
    let preview = opened.preview(&PreviewOptions::default());
    let found: Vec<ResourcePath> = must("preview", preview)?
        .conflicts
        .into_iter()
        .map(|conflict| conflict.path)
        .collect();
    equal("conflicts", &found, &vec![case.known().0])
}

fn reference(strategy: &dyn Strategy, case: &dyn Case) -> CheckOutcome {
    let mut it = Subject::made(strategy, case)?;
    it.put(&case.known().0, b"changed")?;
    let text = must("store the reference", serde_json::to_string(&it.sandbox))?;
    it.sandbox = must("read it back", serde_json::from_str(&text))?;
    it.holds(&case.known().0, b"changed")?;
    let count = usize::from(strategy.capabilities().isolates);
    equal("number of changes", &it.changes()?.len(), &count)
}

fn access(strategy: &dyn Strategy, case: &dyn Case) -> CheckOutcome {
    let it = Subject::made(strategy, case)?;
    let access = must("access", it.open()?.access())?;
    let exposes = strategy.capabilities().exposes;
    match (exposes, &access.cwd, &access.url) {
        (Exposes::Path, Some(_), None) | (Exposes::Url, None, Some(_)) => {
            let path = case.known().0;
            case.work_through(&access, &path, b"by a native tool")?;
            it.holds(&path, b"by a native tool")?;
            let count = usize::from(strategy.capabilities().isolates);
            equal("number of changes", &it.changes()?.len(), &count)
        }
        (Exposes::Nothing, None, None) => Ok(()),
        _ => Err(format!(
            "it exposes {exposes:?}, and access says {access:?}"
        )),
    }
}

fn replaced(strategy: &dyn Strategy, case: &dyn Case) -> CheckOutcome {
    let it = Subject::made(strategy, case)?;
    if !case.replace_original()? {
        return Ok(());
    }
    let opened = strategy.open(&it.sandbox, Session::Shared, &[]);
    match opened.and_then(|opened| opened.diff(None, None)) {
        Err(StrategyError::Replaced { .. }) => Ok(()),
        Err(other) => Err(format!("it is refused with: {other}")),
        Ok(_) => Err("it was compared as if nothing had happened".to_owned()),
    }
}

fn cleanup(strategy: &dyn Strategy, case: &dyn Case) -> CheckOutcome {
    let it = Subject::made(strategy, case)?;
    let before = case.fingerprint()?;
    for _ in 0..2 {
        must(
            "cleanup",
            strategy.cleanup(&it.sandbox, &case.target(), None),
        )?;
    }
    unchanged(case, &before)
}
