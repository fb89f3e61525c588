//! The promises about parts: what is released of a sandbox while the rest stays in it.
//!
//! Each verb is asked for twice wherever somebody who was killed may have done it before, and what is
//! stored between two of them goes through the store.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};

use super::super::{
    Intent, OnConflict, PrepareRequest, Preview, PreviewRequest, Strategy, StrategyError,
};
use super::Case;
use super::checks::{
    Answer, changes, content, equal, expected, must, put, sorted, unchanged, worked_in,
};
use crate::event::{Observer, Unobserved};
use crate::fs::{Dir, Moved, Moves, remove};
use crate::model::{ChangeKind, ResourcePath, SandboxRef};

/// A sandbox in which something was changed, and of which parts are released.
struct Parting<'a> {
    strategy: &'a dyn Strategy,
    case: &'a dyn Case,
    sandbox: SandboxRef,
    /// What was moved in the original and has a name there, as the store remembers it.
    moved: RefCell<Vec<Moved>>,
    areas: Cell<u32>,
}

type Listing = Vec<(String, ChangeKind)>;
type Contents = Vec<(ResourcePath, Vec<u8>)>;
type State = BTreeMap<ResourcePath, String>;

/// The sandbox of a strategy that promises parts; `None` where it does not, and says so when asked.
fn begun<'a>(
    strategy: &'a dyn Strategy,
    case: &'a dyn Case,
) -> Result<Option<Parting<'a>>, String> {
    let capabilities = strategy.capabilities();
    if !strategy.parts() {
        let sandbox = worked_in(strategy, case)?;
        let intent = Intent(serde_json::Value::Null);
        return match strategy.advance(&sandbox, &intent) {
            Err(StrategyError::Unsupported { .. }) => Ok(None),
            Err(other) => Err(format!("it cannot release a part, but says: {other}")),
            Ok(()) => Err("it claims to have released a part, which it cannot".to_owned()),
        };
    }
    if !capabilities.isolates || !capabilities.prepares {
        return Err("it promises parts, but not to isolate and to prepare".to_owned());
    }
    Ok(Some(Parting {
        strategy,
        case,
        sandbox: worked_in(strategy, case)?,
        moved: RefCell::default(),
        areas: Cell::new(0),
    }))
}

/// An intent as somebody else finds it.
fn stored(intent: &Intent) -> Result<Intent, String> {
    let text = must("store the intent", serde_json::to_string(intent))?;
    must("read it back", serde_json::from_str(&text))
}

/// What was changed, in pieces that can be released one after the other.
fn pieces(case: &dyn Case) -> Vec<ResourcePath> {
    let new = case.on_the_way().into_iter().chain(case.absent());
    std::iter::once(case.known().0).chain(new).collect()
}

fn without(mut listing: Listing, released: &[ResourcePath]) -> Listing {
    listing.retain(|(path, _)| !released.iter().any(|one| one.to_string() == *path));
    listing
}

/// The paths of the original that are not as they were. Where something is put, the times of what it lies
/// in move with it.
fn touched(before: &State, now: &State, released: &[ResourcePath]) -> Vec<String> {
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

impl Parting<'_> {
    fn changes(&self) -> Result<Listing, String> {
        changes(self.strategy, &self.sandbox)
    }

    fn moves(&self) -> Moves {
        self.moved.borrow().iter().copied().collect()
    }

    fn preview(&self, strict: bool) -> Result<Preview, String> {
        let moved = &self.moves();
        let request = PreviewRequest { strict, moved };
        must("preview", self.strategy.preview(&self.sandbox, &request))
    }

    /// The paths that contradict a commit; `strict`ly also what moved elsewhere.
    fn conflicts(&self, strict: bool) -> Result<Vec<String>, String> {
        let found = self.preview(strict)?.conflicts.into_iter();
        Ok(found.map(|conflict| conflict.path.to_string()).collect())
    }

    /// Nothing contradicts one, however closely one looks.
    fn no_conflicts(&self, when: &str) -> Answer {
        for strict in [false, true] {
            let what = format!("conflicts {when}, strict {strict}");
            equal(&what, &self.conflicts(strict)?, &Vec::new())?;
        }
        Ok(())
    }

    /// What is read in the sandbox of everything that the case knows.
    fn view(&self) -> Result<BTreeMap<ResourcePath, Vec<u8>>, String> {
        let original = self.case.contents()?.into_iter().map(|(path, _)| path);
        let mut paths: BTreeSet<ResourcePath> = original.collect();
        paths.insert(self.case.known().0);
        paths.extend(self.case.absent());
        let read = |path: ResourcePath| {
            let bytes = content(self.strategy, &self.sandbox, &path)?;
            Ok((path, bytes))
        };
        paths.into_iter().map(read).collect()
    }

    fn same_view(&self, before: &BTreeMap<ResourcePath, Vec<u8>>, when: &str) -> Answer {
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
        let mut preview = self.preview(false)?;
        equal("conflicts", &preview.conflicts, &Vec::new())?;
        if let Some(paths) = paths {
            let changes = preview.diff.changes.iter();
            let chosen: Vec<bool> = changes.map(|one| paths.contains(&one.path)).collect();
            preview.part = true;
            preview.moved = self.moves();
            preview.choose(&chosen, false);
        }
        let number = self.areas.replace(self.areas.get() + 1).to_string();
        let area = self.case.commit_area();
        let made = Dir::open(area).and_then(|dir| dir.make_dir(number.as_bytes(), 0o700));
        must("make an area", made)?;
        let request = PrepareRequest {
            preview: &preview,
            on_conflict: OnConflict::Abort,
            area: &area.join(&number),
            keeps: paths.is_some(),
            digests: false,
            observer: &Unobserved,
        };
        let staged = self.strategy.prepare(&self.sandbox, &request);
        stored(&must("prepare", staged)?.intent)
    }

    /// Removes what was staged, as whoever gives a commit up does.
    fn clear_areas(&self) -> Answer {
        let area = must("open the area", Dir::open(self.case.commit_area()))?;
        for number in 0..self.areas.get() {
            must(
                "clear",
                remove::remove(&area, number.to_string().as_bytes()),
            )?;
        }
        Ok(())
    }

    fn commit(&self, intent: &Intent) -> Answer {
        let done = self.strategy.commit(&self.sandbox, intent, &Unobserved);
        must("commit", done)
    }

    /// Releases these paths, and returns the intent by which that can be taken back.
    fn release(&self, paths: &[ResourcePath]) -> Result<Intent, String> {
        let (strategy, sandbox) = (self.strategy, &self.sandbox);
        let intent = self.prepare(paths)?;
        let shares = must("ask", strategy.shares(sandbox, &intent))?;
        equal("what is shared", &shares, &false)?;
        for _ in 0..2 {
            self.commit(&intent)?;
        }
        let mut last = intent.clone();
        // Whoever is killed before the store knows begins here again.
        for _ in 0..2 {
            last = self.finish(&intent)?;
            for _ in 0..2 {
                must("advance", strategy.advance(sandbox, &last))?;
            }
        }
        Ok(last)
    }

    fn finish(&self, intent: &Intent) -> Result<Intent, String> {
        let finished = self.strategy.finish(&self.sandbox, intent.clone());
        let finished = must("finish", finished)?;
        self.moved.borrow_mut().extend(finished.moved);
        stored(&finished.intent)
    }

    /// Takes a commit back, and again.
    fn undo(&self, intent: &Intent) -> Answer {
        for _ in 0..2 {
            let undone = self
                .strategy
                .rollback(&self.sandbox, Some(intent), &Unobserved);
            self.moved.borrow_mut().extend(must("undo", undone)?.moved);
        }
        Ok(())
    }

    /// Takes back what was released.
    fn take_back(&self, intent: &Intent) -> Answer {
        let (strategy, sandbox, moved) = (self.strategy, &self.sandbox, self.moves());
        let found = must("check", strategy.check_undo(sandbox, intent, &moved))?;
        equal("conflicts of an undo", &found, &Vec::new())?;
        // The same holds here.
        for _ in 0..2 {
            self.undo(intent)?;
            for _ in 0..2 {
                must("retreat", strategy.retreat(sandbox, intent))?;
            }
        }
        Ok(())
    }

    /// Whether the original is as it was, but for what nobody can set.
    fn is_back(&self, before: &(State, Contents)) -> Answer {
        let (state, contents) = before;
        let now = self.case.state()?;
        let mut paths: Vec<&ResourcePath> = state.keys().chain(now.keys()).collect();
        paths.retain(|path| state.get(path) != now.get(path));
        paths.sort();
        paths.dedup();
        equal("paths of the original that differ", &paths, &Vec::new())?;
        match sorted(self.case)? == *contents {
            true => Ok(()),
            false => Err("the contents of the original are not what they were".to_owned()),
        }
    }
}

/// The original, as [`Parting::is_back`] compares it.
fn state(case: &dyn Case) -> Result<(State, Contents), String> {
    Ok((case.state()?, sorted(case)?))
}

// rule C1, F8
pub(super) fn released(strategy: &dyn Strategy, case: &dyn Case) -> Answer {
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
pub(super) fn followed(strategy: &dyn Strategy, case: &dyn Case) -> Answer {
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
pub(super) fn worked_on(strategy: &dyn Strategy, case: &dyn Case) -> Answer {
    let Some(parting) = begun(strategy, case)? else {
        return Ok(());
    };
    let known = case.known().0;
    let piece = std::slice::from_ref(&known);
    let all = parting.changes()?;
    let rest = without(all.clone(), piece);
    parting.release(piece)?;
    let before = case.fingerprint()?;
    put(strategy, &parting.sandbox, &known, b"changed again")?;
    unchanged(case, &before)?;
    equal("changes", &parting.changes()?, &all)?;
    parting.no_conflicts("of what was released and changed again")?;
    parting.release(piece)?;
    equal("changes", &parting.changes()?, &rest)?;
    // What others make of it is theirs, until it is changed here as well.
    case.work_in(case.original(), &known, b"by somebody else")?;
    equal("changes", &parting.changes()?, &rest)?;
    equal("conflicts", &parting.conflicts(false)?, &Vec::new())?;
    put(strategy, &parting.sandbox, &known, b"and once more")?;
    let found = parting.conflicts(false)?;
    equal("conflicts", &found, &vec![known.to_string()])
}

// rule C10
pub(super) fn taken_back(strategy: &dyn Strategy, case: &dyn Case) -> Answer {
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
pub(super) fn given_up(strategy: &dyn Strategy, case: &dyn Case) -> Answer {
    let before = case.fingerprint()?;
    let at_first = state(case)?;
    let Some(parting) = begun(strategy, case)? else {
        return Ok(());
    };
    let (all, view) = (parting.changes()?, parting.view()?);
    let nothing_happened = |when: &str| -> Answer {
        equal("changes", &parting.changes()?, &all)?;
        parting.same_view(&view, when)?;
        parting.no_conflicts(when)
    };
    let mut parts = vec![pieces(case)];
    parts.extend(pieces(case).into_iter().map(|piece| vec![piece]));
    for part in &parts {
        // Killed once it was staged: nobody says goodbye.
        parting.prepare(part)?;
        unchanged(case, &before)?;
        nothing_happened("once a part is prepared")?;
        let intent = parting.prepare(part)?;
        for _ in 0..2 {
            let dropped = strategy.drop_intent(&parting.sandbox, &intent);
            must("drop", dropped)?;
        }
        parting.clear_areas()?;
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
                false => match strategy.commit(&parting.sandbox, &intent, &OneStep::default()) {
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
pub(super) fn discarded(strategy: &dyn Strategy, case: &dyn Case) -> Answer {
    let before = state(case)?;
    let Some(parting) = begun(strategy, case)? else {
        return Ok(());
    };
    let known = case.known().0;
    let intent = parting.release(std::slice::from_ref(&known))?;
    let released = case.fingerprint()?;
    for _ in 0..2 {
        let discarded = strategy.rollback(&parting.sandbox, None, &Unobserved);
        must("rollback", discarded)?;
        equal("changes", &parting.changes()?, &Vec::new())?;
        unchanged(case, &released)?;
        equal(
            "content",
            &content(strategy, &parting.sandbox, &known)?,
            &b"changed".to_vec(),
        )?;
    }
    if strategy.capabilities().undoes {
        parting.take_back(&intent)?;
        parting.is_back(&before)?;
        equal("changes", &parting.changes()?, &Vec::new())?;
    }
    Ok(())
}
