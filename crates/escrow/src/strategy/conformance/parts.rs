//! Conformance checks for partial commits: a part is released while the rest stays in the sandbox.
//!
//! Each verb is asked for twice wherever another process that was killed may have done it before, and what is
//! stored between two of them goes through the store.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};

use super::super::{Intent, OnConflict, PrepareRequest, Preview, PreviewOptions, Strategy};
use super::Case;
use super::checks::{CheckOutcome, Subject, equal, expected, must, sorted, unchanged};
use crate::event::{Observer, Unobserved};
use crate::model::{ChangeKind, ResourcePath};

/// A sandbox in which something was changed, and of which parts are released.
struct PartFixture<'a>(Subject<'a>);

type TreeListing = Vec<(String, ChangeKind)>;
type TreeContents = Vec<(ResourcePath, Vec<u8>)>;
type TreeState = BTreeMap<ResourcePath, String>;

/// The sandbox of a strategy that promises parts; `None` where it does not, and says so when asked.
fn begun<'a>(
    strategy: &'a dyn Strategy,
    case: &'a dyn Case,
) -> Result<Option<PartFixture<'a>>, String> {
    let capabilities = strategy.capabilities();
    if !capabilities.partial {
        return Ok(None);
    }
    if !capabilities.isolates || !capabilities.prepares {
        return Err("it promises parts, but not to isolate and to prepare".to_owned());
    }
    Ok(Some(PartFixture(Subject::worked_in(strategy, case)?)))
}

/// An intent as another process finds it.
fn stored(intent: &Intent) -> Result<Intent, String> {
    let text = must("store the intent", serde_json::to_string(intent))?;
    must("read it back", serde_json::from_str(&text))
}

/// What was changed, in pieces that can be released one after the other.
fn pieces(case: &dyn Case) -> Vec<ResourcePath> {
    let new = case.on_the_way().into_iter().chain(case.absent());
    std::iter::once(case.known().0).chain(new).collect()
}

fn without(mut listing: TreeListing, released: &[ResourcePath]) -> TreeListing {
    listing.retain(|(path, _)| !released.iter().any(|one| one.to_string() == *path));
    listing
}

/// The paths of the original that are not as they were. Where something is put, the times of what it lies
/// in move with it.
fn touched(before: &TreeState, now: &TreeState, released: &[ResourcePath]) -> Vec<String> {
    let mut holders: BTreeSet<ResourcePath> =
        released.iter().flat_map(|path| path.ancestors()).collect();
    holders.insert(ResourcePath::root());
    let paths: BTreeSet<&ResourcePath> = before.keys().chain(now.keys()).collect();
    let differs = |path: &&ResourcePath| {
        let (old, new) = (before.get(*path), now.get(*path));
        let moved = old.is_some() && new.is_some() && holders.contains(*path);
        old != new && (released.contains(path) || !moved)
    };
    let found = paths.into_iter().filter(differs);
    found.map(|path| path.to_string()).collect()
}

/// Gives up after one step.
#[derive(Default)]
struct OneStep(AtomicBool);

impl Observer for OneStep {
    fn copied(&self, _entries: u64, _bytes: u64) {
        self.0.store(true, Ordering::SeqCst);
    }

    fn is_cancelled(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }
}

impl PartFixture<'_> {
    fn changes(&self) -> Result<TreeListing, String> {
        self.0.changes()
    }

    fn preview(&self, strict: bool) -> Result<Preview, String> {
        let opened = self.0.open()?;
        must(
            "preview",
            opened.preview(&PreviewOptions {
                strict,
                ..PreviewOptions::default()
            }),
        )
    }

    /// The paths that contradict a commit; `strict`ly also what moved elsewhere.
    fn conflicts(&self, strict: bool) -> Result<Vec<String>, String> {
        let found = self.preview(strict)?.conflicts.into_iter();
        Ok(found.map(|conflict| conflict.path.to_string()).collect())
    }

    /// Nothing contradicts one, however closely one looks.
    fn no_conflicts(&self, when: &str) -> CheckOutcome {
        for strict in [false, true] {
            let what = format!("conflicts {when}, strict {strict}");
            equal(&what, &self.conflicts(strict)?, &Vec::new())?;
        }
        Ok(())
    }

    /// What is read in the sandbox of everything that the case knows.
    fn view(&self) -> Result<BTreeMap<ResourcePath, Vec<u8>>, String> {
        let original = self.0.case.contents()?.into_iter().map(|(path, _)| path);
        let mut paths: BTreeSet<ResourcePath> = original.collect();
        paths.insert(self.0.case.known().0);
        paths.extend(self.0.case.absent());
        let read = |path: ResourcePath| {
            let bytes = self.0.content(&path)?;
            Ok((path, bytes))
        };
        paths.into_iter().map(read).collect()
    }

    fn same_view(&self, before: &BTreeMap<ResourcePath, Vec<u8>>, when: &str) -> CheckOutcome {
        match self.view()? == *before {
            true => Ok(()),
            false => Err(format!(
                "what is seen in the sandbox is another thing {when}"
            )),
        }
    }

    /// Stages these paths and nothing else.
    fn prepare(&self, paths: &[ResourcePath]) -> Result<Intent, String> {
        self.stage(Some(paths))
    }

    /// The same; without paths everything there is, after which the sandbox goes.
    fn stage(&self, paths: Option<&[ResourcePath]>) -> Result<Intent, String> {
        let opened = self.0.open()?;
        let mut preview = must("preview", opened.preview(&PreviewOptions::default()))?;
        equal("conflicts", &preview.conflicts, &Vec::new())?;
        if let Some(paths) = paths {
            let changes = preview.diff.changes.iter();
            let chosen: Vec<bool> = changes.map(|one| paths.contains(&one.path)).collect();
            preview.part = true;
            preview.choose(&chosen, false);
        }
        let area = self.0.case.commit_area()?;
        let request = PrepareRequest {
            preview: &preview,
            on_conflict: OnConflict::Abort,
            message: None,
            area: area.as_deref(),
            keeps: paths.is_some(),
            digests: false,
            promised: &[],
            observer: &Unobserved,
        };
        stored(&must("prepare", opened.prepare(&request))?.intent)
    }

    fn commit(&self, intent: &Intent) -> CheckOutcome {
        let done = self.0.strategy.commit(intent, &Unobserved);
        must("commit", done)
    }

    /// Releases these paths, and returns the intent by which that can be taken back.
    fn release(&self, paths: &[ResourcePath]) -> Result<Intent, String> {
        let intent = self.prepare(paths)?;
        for _ in 0..2 {
            self.commit(&intent)?;
        }
        let mut last = intent.clone();
        // A process that is killed before the store knows begins here again.
        for _ in 0..2 {
            last = self.finish(&intent)?;
        }
        self.0.standing.borrow_mut().push(last.clone());
        Ok(last)
    }

    fn finish(&self, intent: &Intent) -> Result<Intent, String> {
        let finished = must("finish", self.0.strategy.finish(intent.clone()))?;
        stored(&finished.intent)
    }

    /// Takes a commit back, and again.
    fn undo(&self, intent: &Intent) -> CheckOutcome {
        for _ in 0..2 {
            must("undo", self.0.strategy.undo(intent, &Unobserved))?;
        }
        self.0.standing.borrow_mut().retain(|one| one.0 != intent.0);
        Ok(())
    }

    /// Takes back what was released.
    fn take_back(&self, intent: &Intent) -> CheckOutcome {
        let found = must("check", self.0.strategy.check_undo(intent))?;
        equal("conflicts of an undo", &found, &Vec::new())?;
        self.undo(intent)
    }

    /// Whether the original is as it was, but for what no program can set.
    fn is_back(&self, before: &(TreeState, TreeContents)) -> CheckOutcome {
        let (state, contents) = before;
        let now = self.0.case.state()?;
        let mut paths: Vec<&ResourcePath> = state.keys().chain(now.keys()).collect();
        paths.retain(|path| state.get(path) != now.get(path));
        paths.sort();
        paths.dedup();
        equal("paths of the original that differ", &paths, &Vec::new())?;
        match sorted(self.0.case)? == *contents {
            true => Ok(()),
            false => Err("the contents of the original are not what they were".to_owned()),
        }
    }
}

/// The original, as [`PartFixture::is_back`] compares it.
fn state(case: &dyn Case) -> Result<(TreeState, TreeContents), String> {
    Ok((case.state()?, sorted(case)?))
}

// rule C1, F8
pub(super) fn released(strategy: &dyn Strategy, case: &dyn Case) -> CheckOutcome {
    let before = case.state()?;
    let (old, new) = (sorted(case)?, expected(case)?);
    let Some(parting) = begun(strategy, case)? else {
        return Ok(());
    };
    let (all, view) = (parting.changes()?, parting.view()?);
    let mut released: Vec<ResourcePath> = Vec::new();
    for piece in pieces(case) {
        parting.release(std::slice::from_ref(&piece))?;
        released.push(piece);
        let mut paths: Vec<String> = released.iter().map(ResourcePath::to_string).collect();
        paths.sort();
        let mut found = touched(&before, &case.state()?, &released);
        found.sort();
        equal("what the original got", &found, &paths)?;
        let mut wanted = old.clone();
        wanted.retain(|(path, _)| !released.contains(path));
        wanted.extend(
            new.iter()
                .filter(|(path, _)| released.contains(path))
                .cloned(),
        );
        wanted.sort();
        if sorted(case)? != wanted {
            return Err("the original does not hold what was released".to_owned());
        }
        equal(
            "changes",
            &parting.changes()?,
            &without(all.clone(), &released),
        )?;
        parting.same_view(&view, "once a part is released")?;
    }
    Ok(())
}

// rule C1, C15
pub(super) fn followed(strategy: &dyn Strategy, case: &dyn Case) -> CheckOutcome {
    let wanted = expected(case)?;
    let Some(parting) = begun(strategy, case)? else {
        return Ok(());
    };
    for piece in pieces(case) {
        parting.release(&[piece])?;
        parting.no_conflicts("after a part")?;
        // The last piece but one leaves a rest that is released as a whole.
        if parting.changes()?.len() == 1 {
            break;
        }
    }
    if !parting.changes()?.is_empty() {
        let intent = parting.stage(None)?;
        parting.commit(&intent)?;
    }
    match sorted(case)? == wanted {
        true => Ok(()),
        false => Err("part and rest are not the whole".to_owned()),
    }
}

// rule C15
pub(super) fn worked_on(strategy: &dyn Strategy, case: &dyn Case) -> CheckOutcome {
    let Some(parting) = begun(strategy, case)? else {
        return Ok(());
    };
    let known = case.known().0;
    let piece = std::slice::from_ref(&known);
    let all = parting.changes()?;
    let rest = without(all.clone(), piece);
    parting.release(piece)?;
    let before = case.fingerprint()?;
    parting.0.put(&known, b"changed again")?;
    unchanged(case, &before)?;
    equal("changes", &parting.changes()?, &all)?;
    parting.no_conflicts("of what was released and changed again")?;
    parting.release(piece)?;
    equal("changes", &parting.changes()?, &rest)?;
    // What others make of it is never released over.
    case.change_original(&known, b"by somebody else")?;
    parting.0.put(&known, b"and once more")?;
    let found = parting.conflicts(false)?;
    equal("conflicts", &found, &vec![known.to_string()])
}

// rule C10
pub(super) fn taken_back(strategy: &dyn Strategy, case: &dyn Case) -> CheckOutcome {
    let before = state(case)?;
    let wanted = expected(case)?;
    let Some(parting) = begun(strategy, case)? else {
        return Ok(());
    };
    if !strategy.capabilities().undoes {
        return Ok(());
    }
    let (all, view) = (parting.changes()?, parting.view()?);
    let mut standing = Vec::new();
    for piece in pieces(case) {
        let earlier = (state(case)?, parting.changes()?);
        standing.push((parting.release(&[piece])?, earlier));
    }
    // The newest first, as they are taken back.
    while let Some((intent, (state, listing))) = standing.pop() {
        parting.take_back(&intent)?;
        parting.is_back(&state)?;
        equal("changes", &parting.changes()?, &listing)?;
        parting.same_view(&view, "once a part is taken back")?;
        parting.no_conflicts("once a part is taken back")?;
    }
    parting.is_back(&before)?;
    equal("changes", &parting.changes()?, &all)?;
    // Nothing of it is in the way of the whole.
    parting.release(&pieces(case))?;
    match sorted(case)? == wanted {
        true => Ok(()),
        false => Err("it cannot be released again".to_owned()),
    }
}

// rule C2, C6
pub(super) fn given_up(strategy: &dyn Strategy, case: &dyn Case) -> CheckOutcome {
    let before = case.fingerprint()?;
    let at_first = state(case)?;
    let Some(parting) = begun(strategy, case)? else {
        return Ok(());
    };
    let (all, view) = (parting.changes()?, parting.view()?);
    let nothing_happened = |when: &str| -> CheckOutcome {
        equal("changes", &parting.changes()?, &all)?;
        parting.same_view(&view, when)?;
        parting.no_conflicts(when)
    };
    let mut parts = vec![pieces(case)];
    parts.extend(pieces(case).into_iter().map(|piece| vec![piece]));
    for part in &parts {
        // Killed once it was staged: without a last word.
        parting.prepare(part)?;
        unchanged(case, &before)?;
        nothing_happened("once a part is prepared")?;
        let intent = parting.prepare(part)?;
        for _ in 0..2 {
            must("drop", strategy.undo(&intent, &Unobserved))?;
        }
        case.clear_commit_areas()?;
        unchanged(case, &before)?;
        nothing_happened("once a part is dropped")?;
    }
    if !strategy.capabilities().undoes {
        return Ok(());
    }
    for part in &parts {
        for whole in [false, true] {
            let intent = parting.prepare(part)?;
            match whole {
                true => parting.commit(&intent)?,
                // Whether it stopped or not: it is taken back.
                false => match strategy.commit(&intent, &OneStep::default()) {
                    Ok(()) | Err(_) => {}
                },
            }
            parting.undo(&intent)?;
            parting.is_back(&at_first)?;
            nothing_happened("once a part is given up")?;
        }
    }
    Ok(())
}

// rule P5
pub(super) fn discarded(strategy: &dyn Strategy, case: &dyn Case) -> CheckOutcome {
    let before = state(case)?;
    let Some(parting) = begun(strategy, case)? else {
        return Ok(());
    };
    let known = case.known().0;
    let intent = parting.release(std::slice::from_ref(&known))?;
    let released = case.fingerprint()?;
    for _ in 0..2 {
        must("rollback", parting.0.rollback())?;
        parting.0.no_changes()?;
        unchanged(case, &released)?;
        parting.0.holds(&known, b"changed")?;
    }
    if strategy.capabilities().undoes {
        parting.take_back(&intent)?;
        parting.is_back(&before)?;
        parting.0.no_changes()?;
    }
    Ok(())
}
