//! What a release of the history takes along, whatever the files show: every path of every commit and of the index, and whose
//! commits they are.
//!
//! A commit counts against its first parent, a branch against where it was, the index against the one that the sandbox began
//! with. What the files have as well is told apart, by contents: the rest is said before anything is released.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::path::Path;

use super::super::error::{Result, StrategyError};
use super::command::GitCall;
use super::danger::{self, NewPath};
use super::history::{Commit, Graph, History, add_line, is_released, path_of, short};
use super::identity;
use super::index::PrivateIndex;
use super::release::{read_all, read_blobs};
use super::said::{self, more, refuse, warn};
use super::session::GitSession;
use super::trees::{self, LINK, SUBMODULE, TreeChange, TreeEntry};
use crate::model::text::Location;
use crate::model::{
    Carried, CarriedContents, CarriedFiles, Change, ChangedField, Detail, DiffView, EntryInfo,
    EntryKind, ResourcePath,
};

/// Where a version is that is not committed yet.
const WORK: &str = "the commit of what was left";
const INDEX: &str = "the index";

/// A larger version is not shown.
const MOST: u64 = 4 << 20;

/// So many bytes of versions are compared at once, and shown of one change.
const AT_ONCE: u64 = 64 << 20;

/// What the history is seen beside.
pub(super) struct Beside<'a> {
    /// The changed files.
    pub(super) files: &'a DiffView,
    /// They are those that can be read now.
    pub(super) now: bool,
    pub(super) index: Option<&'a PrivateIndex>,
    /// The tree of what was left uncommitted, if it becomes a commit.
    pub(super) work: Option<&'a str>,
    /// Where objects lie that were made to be looked at.
    pub(super) objects: Option<&'a Path>,
}

/// A released reference.
pub(super) struct Row {
    /// Its place among the changes.
    at: usize,
    name: String,
    old: Option<String>,
    pub(super) new: String,
    main: bool,
}

/// A version at a path, and whether it is the one with which the row ends.
pub(super) struct Version {
    pub(super) within: String,
    pub(super) path: ResourcePath,
    old: Option<TreeEntry>,
    pub(super) new: Option<TreeEntry>,
    last: bool,
}

impl Version {
    fn of(within: &str, change: &TreeChange, last: bool) -> Result<Self> {
        Ok(Self {
            within: within.to_owned(),
            path: path_of(&change.path)?,
            old: change.old.clone(),
            new: change.new.clone(),
            last,
        })
    }
}

impl GitSession {
    /// Adds to the changes of a history what each of them takes along.
    pub(super) fn carry(
        &self,
        history: &History,
        (changes, graph): (&mut [Change], Option<Result<Graph>>),
        beside: &Beside<'_>,
    ) -> Result<()> {
        let carrying = Carrying::of(self, history, beside);
        let rows = carrying.rows(changes);
        let graph = match graph {
            Some(Err(error)) => {
                let why = format!("its commits cannot be read ({error})");
                rows.iter()
                    .for_each(|row| refuse(&mut changes[row.at], &why));
                return Ok(());
            }
            graph => graph.and_then(Result::ok),
        };
        match carrying.fill(changes, &rows, graph.as_ref()) {
            // What an agent left there is shown all the same.
            Err(error @ (StrategyError::Git { .. } | StrategyError::Damaged { .. })) => {
                let why = format!("what it changes cannot be read ({error})");
                rows.iter()
                    .for_each(|row| refuse(&mut changes[row.at], &why));
                Ok(())
            }
            filled => filled,
        }
    }

    /// The contents of what a change carries and the files do not show.
    pub(super) fn carried_contents(&self, change: &Change) -> Result<CarriedContents> {
        let hidden = change.carried().iter();
        let hidden = hidden.filter(|one| one.files != CarriedFiles::Same);
        let ids = hidden.flat_map(|one| one.ids.0.iter().chain(&one.ids.1));
        let ids: BTreeSet<&str> = ids.map(String::as_str).collect();
        let history = self.history()?;
        if ids.is_empty() || history.check_objects().is_err() {
            return Ok(CarriedContents::new());
        }
        let mut room = AT_ONCE;
        let sizes = sizes(history.call(&self.program), ids)?;
        let fits = |(id, size): (&String, &u64)| {
            let fits = *size <= MOST.min(room);
            room -= if fits { *size } else { 0 };
            fits.then_some(id.clone())
        };
        let wanted: Vec<String> = sizes.iter().filter_map(fits).collect();
        let wanted = wanted.iter().map(String::as_str).collect();
        read_blobs(history.call(&self.program), wanted)
    }
}

/// The blobs among these, with their sizes.
fn sizes(call: GitCall<'_>, ids: BTreeSet<&str>) -> Result<BTreeMap<String, u64>> {
    let asked: String = ids.iter().flat_map(|id| [*id, "\n"]).collect();
    let format = "--batch-check=%(objectname) %(objecttype) %(objectsize)";
    let said = call.args(["cat-file", format]).input(asked).run()?;
    let said = String::from_utf8_lossy(&said).into_owned();
    let one = |line: &str| {
        let (id, size) = line.split_once(" blob ")?;
        Some((id.to_owned(), size.parse().ok()?))
    };
    Ok(said.lines().filter_map(one).collect())
}

pub(super) struct Carrying<'a> {
    session: &'a GitSession,
    history: &'a History,
    beside: &'a Beside<'a>,
    files: HashMap<&'a ResourcePath, &'a Change>,
}

impl<'a> Carrying<'a> {
    pub(super) fn of(
        session: &'a GitSession,
        history: &'a History,
        beside: &'a Beside<'a>,
    ) -> Self {
        let files = beside.files.changes.iter();
        Self {
            session,
            history,
            beside,
            files: files.map(|one| (&one.path, one)).collect(),
        }
    }

    fn call(&self) -> GitCall<'_> {
        let git = &self.session.program;
        match self.beside.objects {
            Some(made) => self.history.making(git, made),
            None => self.history.call(git),
        }
    }

    /// The references that are released and stand for something; that of the checkout first.
    pub(super) fn rows(&self, changes: &[Change]) -> Vec<Row> {
        let main = self
            .session
            .sandbox
            .head
            .branch
            .as_deref()
            .unwrap_or("HEAD");
        let mut rows: Vec<Row> = Vec::new();
        for (at, change) in changes.iter().enumerate() {
            let Detail::Opaque { detail, .. } = &change.detail else {
                continue;
            };
            let text = |key: &str| detail[key].as_str().map(str::to_owned);
            if let (true, Some(name)) = (is_released(change), text("ref")) {
                let main = name == main;
                let new = text("new").or_else(|| main.then(String::new));
                rows.extend(new.map(|new| Row {
                    at,
                    name,
                    old: text("old"),
                    new,
                    main,
                }));
            }
        }
        rows.sort_by_key(|row| !row.main);
        rows
    }

    fn fill(&self, changes: &mut [Change], rows: &[Row], graph: Option<&Graph>) -> Result<()> {
        let index = changes
            .iter()
            .position(|one| one.path.as_bytes() == b".git/index");
        if rows.is_empty() && index.is_none() {
            return Ok(());
        }
        let commits = self.commits(rows, graph);
        let (pairs, kinds) = self.moves(rows)?;
        let tags = self.tags(rows, &kinds)?;
        let mut input = String::new();
        let ids = commits.iter().flatten();
        input.extend(ids.flat_map(|(id, _)| [*id, "\n"]));
        input.extend(
            pairs
                .iter()
                .flatten()
                .flat_map(|pair| [pair.as_str(), "\n"]),
        );
        let differ = match input.is_empty() {
            true => BTreeMap::new(),
            false => trees::of_many(self.call(), input.into_bytes())?,
        };
        let user = match rows.is_empty() {
            true => None,
            false => identity::user(&self.session.program, &self.session.sandbox.repository)?,
        };
        let all = rows.iter().zip(&commits).zip(pairs.iter().zip(&kinds));
        for ((row, commits), (pair, kind)) in all {
            let change = &mut changes[row.at];
            let versions = self.versions(row, commits, pair.as_deref(), &differ)?;
            self.add(change, versions)?;
            warn(change, said::strangers(commits, user.as_deref()));
            if !row.main && kind != "commit" {
                let known = graph.is_some_and(|graph| graph.stands_for(&row.new));
                let tag = tags.get(&row.new).filter(|_| known);
                said::look_at_tag(change, (&row.name, tag.map(Vec::as_slice)), user.as_deref());
            }
            more(
                change,
                commits.iter().flat_map(|(id, commit)| commit.text(id)),
            );
            if let (true, true, Some(graph)) = (row.main, commits.is_empty(), graph) {
                // What becomes one commit gives it its message.
                let told = graph.of(&row.new, usize::MAX).into_iter();
                more(change, told.flat_map(|(id, commit)| commit.text(id)));
            }
            if graph.is_some_and(|graph| graph.more) {
                let why = "more than 20000 commits are new; fetch them into the repository outside, and merge them from there";
                refuse(change, why);
            }
        }
        if let (Some(at), Some(index)) = (index, self.beside.index) {
            self.add(&mut changes[at], staged(index)?)?;
        }
        Ok(())
    }

    /// The new commits of each reference; one that several have counts for the first. Those that become one are not released.
    pub(super) fn commits<'g>(
        &self,
        rows: &[Row],
        graph: Option<&'g Graph>,
    ) -> Vec<Vec<(&'g str, &'g Commit)>> {
        let mut met = HashSet::new();
        let of = |row: &Row| {
            if row.main && self.session.sandbox.options.squash {
                return Vec::new();
            }
            let all = graph.map(|graph| graph.of(&row.new, usize::MAX));
            let all = all.into_iter().flatten();
            all.filter(|(id, _)| met.insert(*id)).collect()
        };
        rows.iter().map(of).collect()
    }

    /// The trees between which each reference moves, and what it stands for. Of a new one, beside that of the checkout, all
    /// is in its commits.
    fn moves(&self, rows: &[Row]) -> Result<(Vec<Option<String>>, Vec<String>)> {
        let empty = trees::empty_tree(&self.session.sandbox.repository.format);
        let tree = |commit: Option<&str>| match commit.filter(|id| !id.is_empty()) {
            Some(id) => format!("{id}^{{tree}}\n"),
            None => format!("{empty}\n"),
        };
        let mut asked = String::new();
        for row in rows {
            asked += &tree(row.old.as_deref());
            asked += &match self.beside.work.filter(|_| row.main) {
                Some(work) => format!("{work}\n"),
                None => tree(Some(&row.new)),
            };
            let new = if row.new.is_empty() { empty } else { &row.new };
            asked.extend([new, "\n"]);
        }
        if asked.is_empty() {
            return Ok((Vec::new(), Vec::new()));
        }
        let format = "--batch-check=%(objectname) %(objecttype)";
        let said = self.call().args(["cat-file", format]).input(asked).run()?;
        let said = String::from_utf8_lossy(&said).into_owned();
        let lines = said
            .lines()
            .map(|line| line.rsplit_once(' ').unwrap_or_default());
        let found: Vec<(&str, &str)> = lines.collect();
        let (mut pairs, mut kinds) = (Vec::new(), Vec::new());
        for (row, found) in rows.iter().zip(found.chunks(3)) {
            let [(old, a), (new, b), (_, kind)] = found else {
                continue;
            };
            let known = (*a, *b) == ("tree", "tree") && old != new;
            let pair = known && (row.main || row.old.is_some());
            pairs.push(pair.then(|| format!("{old} {new}")));
            kinds.push((*kind).to_owned());
        }
        Ok((pairs, kinds))
    }

    /// The tags among these that have a text of their own.
    fn tags(&self, rows: &[Row], kinds: &[String]) -> Result<BTreeMap<String, Vec<u8>>> {
        let tags = rows.iter().zip(kinds).filter(|(_, kind)| *kind == "tag");
        let tags: BTreeSet<&str> = tags.map(|(row, _)| row.new.as_str()).collect();
        match tags.is_empty() {
            true => Ok(BTreeMap::new()),
            false => read_blobs(self.call(), tags),
        }
    }

    /// Every version that a reference takes along.
    pub(super) fn versions(
        &self,
        row: &Row,
        commits: &[(&str, &Commit)],
        pair: Option<&str>,
        differ: &BTreeMap<String, Vec<TreeChange>>,
    ) -> Result<Vec<Version>> {
        let moved = pair.and_then(|pair| differ.get(pair)).into_iter().flatten();
        let mut moved: HashMap<&[u8], &TreeChange> =
            moved.map(|one| (one.path.as_slice(), one)).collect();
        let (mut versions, mut met) = (Vec::new(), HashSet::new());
        for (id, commit) in commits {
            let within = commit.called(id);
            for one in differ.get(*id).into_iter().flatten() {
                let first = met.insert(one.path.as_slice());
                let ends = moved
                    .get(&one.path[..])
                    .is_some_and(|end| end.new == one.new);
                if ends {
                    moved.remove(&one.path[..]);
                }
                let last = ends || (!row.main && row.old.is_none() && first);
                versions.push(Version::of(&within, one, last)?);
            }
        }
        // What came first is named first.
        versions.reverse();
        // What no commit that is new does: the reference went elsewhere.
        let within = match self.beside.work.filter(|_| row.main) {
            Some(_) => WORK.to_owned(),
            None => format!("{} at {}", row.name, short(&row.new)),
        };
        let mut left: Vec<&&TreeChange> = moved.values().collect();
        left.sort_by_key(|one| &one.path);
        for one in left {
            versions.push(Version::of(&within, one, true)?);
        }
        Ok(versions)
    }

    /// Adds these versions to a change, and says which of them the files do not show.
    fn add(&self, change: &mut Change, versions: Vec<Version>) -> Result<()> {
        let same = self.same(&versions)?;
        let links = versions
            .iter()
            .flat_map(|one| one.old.iter().chain(&one.new));
        let links = links.filter(|(mode, _)| mode == LINK);
        let links: BTreeSet<&str> = links.map(|(_, id)| id.as_str()).collect();
        let targets = match links.is_empty() {
            true => BTreeMap::new(),
            false => {
                let small = sizes(self.call(), links)?.into_iter();
                let small = small.filter(|(_, size)| *size <= 4096);
                let small: BTreeSet<String> = small.map(|(id, _)| id).collect();
                read_blobs(self.call(), small.iter().map(String::as_str).collect())?
            }
        };
        let new = versions.iter().filter_map(|one| {
            let (mode, _) = one.new.as_ref()?;
            Some((&one.path, mode.as_str()))
        });
        let new: Vec<NewPath<'_>> = new.collect();
        if let Some(why) = self
            .beside
            .index
            .and_then(|index| danger::of(&new, &index.before))
        {
            refuse(change, &why);
        }
        let mut unseen: BTreeMap<ResourcePath, (usize, String)> = BTreeMap::new();
        let mut all = Vec::new();
        for (number, one) in versions.iter().enumerate() {
            let files = self.files_show(one, same.contains(&number));
            if files == CarriedFiles::Other {
                // Of several the last one counts, or else one that something is in.
                let rank = usize::from(!one.last) * 2 + usize::from(one.new.is_none());
                let said = unseen.get(&one.path);
                if said.is_none_or(|(before, _)| rank < *before) {
                    unseen.insert(one.path.clone(), (rank, self.said_of(one)));
                }
            }
            let change = as_change(one, &targets);
            let id = |side: &Option<TreeEntry>| side.as_ref().map(|(_, id)| id.clone());
            let (within, ids) = (one.within.clone(), (id(&one.old), id(&one.new)));
            all.extend(change.map(|change| Carried {
                within,
                change,
                ids,
                files,
            }));
        }
        let later = all.iter().filter(|one| one.files == CarriedFiles::Later);
        let later: HashSet<&ResourcePath> = later.map(|one| &one.change.path).collect();
        if !later.is_empty() {
            let count = later.len();
            let files = if count == 1 { "file" } else { "files" };
            let said = format!(
                "earlier versions of {count} {files} stay in the history; `--patch` shows them"
            );
            add_line(change, &said);
        }
        warn(change, unseen.into_values().map(|(_, said)| said).collect());
        if let Detail::Opaque { carried, .. } = &mut change.detail {
            carried.extend(all);
        }
        Ok(())
    }

    fn said_of(&self, one: &Version) -> String {
        let (within, path) = (&one.within, &one.path);
        if self.files.contains_key(path) {
            return format!("{within} has another version of {path} than the files");
        }
        let does = match (&one.old, &one.new) {
            (None, _) => "adds",
            (_, None) => "deletes",
            _ => "changes",
        };
        let stays = match one.last {
            true => "",
            false => ", and which stays in the history",
        };
        format!("{within} {does} {path}, which the files do not show{stays}")
    }

    fn files_show(&self, one: &Version, same: bool) -> CarriedFiles {
        let module =
            |side: &Option<TreeEntry>| side.as_ref().is_some_and(|(mode, _)| mode == SUBMODULE);
        match () {
            // The listing of files says it by a line of its own.
            () if module(&one.old) || module(&one.new) => CarriedFiles::Same,
            () if !self.files.contains_key(&one.path) => CarriedFiles::Other,
            () if !one.last => CarriedFiles::Later,
            () if same || !self.beside.now => CarriedFiles::Same,
            () => CarriedFiles::Other,
        }
    }

    /// Which of the last versions the files have too: by their contents.
    fn same(&self, versions: &[Version]) -> Result<HashSet<usize>> {
        let mut same = HashSet::new();
        let mut compared: Vec<(usize, &str)> = Vec::new();
        let last = versions
            .iter()
            .enumerate()
            .filter(|(_, one)| one.last && self.beside.now);
        for (number, one) in last {
            let Some(file) = self.files.get(&one.path) else {
                continue;
            };
            match (&one.new, &file.new) {
                (None, new) => {
                    let dir = |new: &EntryInfo| new.kind == EntryKind::Directory;
                    same.extend(new.as_ref().is_none_or(dir).then_some(number));
                }
                (Some((mode, id)), Some(new)) if is_kind(mode, new) => {
                    compared.push((number, id.as_str()));
                }
                _ => {}
            }
        }
        let ids: BTreeSet<&str> = compared.iter().map(|(_, id)| *id).collect();
        if ids.is_empty() {
            return Ok(same);
        }
        let sizes = sizes(self.call(), ids)?;
        let (mut batch, mut bytes) = (Vec::new(), 0);
        for (number, id) in compared {
            // A larger one is read alone.
            let size = sizes.get(id).copied().unwrap_or_default();
            if bytes + size > AT_ONCE {
                self.compare(versions, std::mem::take(&mut batch), &mut same)?;
                bytes = 0;
            }
            batch.push((number, id));
            bytes += size;
        }
        self.compare(versions, batch, &mut same)?;
        Ok(same)
    }

    fn compare(
        &self,
        versions: &[Version],
        batch: Vec<(usize, &str)>,
        same: &mut HashSet<usize>,
    ) -> Result<()> {
        if batch.is_empty() {
            return Ok(());
        }
        let blobs = read_blobs(self.call(), batch.iter().map(|(_, id)| *id).collect())?;
        for (number, id) in batch {
            let path = &versions[number].path;
            let Some(blob) = blobs.get(id) else { continue };
            let target = self
                .files
                .get(path)
                .and_then(|file| file.new.as_ref()?.target.as_ref());
            let file = match target {
                Some(target) => target.as_bytes().to_vec(),
                None => match self.session.files.read(path) {
                    Err(StrategyError::NotThere { .. } | StrategyError::NotAFile { .. }) => {
                        continue;
                    }
                    file => read_all(file?)?,
                },
            };
            if file == *blob || unix_lines(&file) == *blob {
                same.insert(number);
            }
        }
        Ok(())
    }
}

/// What is staged that was not.
fn staged(index: &PrivateIndex) -> Result<Vec<Version>> {
    let mut versions = Vec::new();
    for path in index.staged() {
        let (before, after) = index.of(path);
        if before == after {
            continue;
        }
        let old = before.values().next().cloned();
        let empty = [None];
        let all: Vec<Option<TreeEntry>> = match after.is_empty() {
            true => empty.to_vec(),
            false => after.values().cloned().map(Some).collect(),
        };
        for new in all {
            versions.push(Version {
                within: INDEX.to_owned(),
                path: path_of(path)?,
                old: old.clone(),
                new,
                last: true,
            });
        }
    }
    Ok(versions)
}

/// Text with the line ends that git stores, where it converts them.
fn unix_lines(bytes: &[u8]) -> Vec<u8> {
    let mut text = Vec::with_capacity(bytes.len());
    for (at, &byte) in bytes.iter().enumerate() {
        if byte != b'\r' || bytes.get(at + 1) != Some(&b'\n') {
            text.push(byte);
        }
    }
    text
}

fn is_kind(mode: &str, file: &EntryInfo) -> bool {
    match mode {
        LINK => file.kind == EntryKind::Symlink,
        "100755" => file.kind == EntryKind::File && file.mode & 0o100 != 0,
        _ => file.kind == EntryKind::File && file.mode & 0o100 == 0,
    }
}

fn entry((mode, id): &TreeEntry, targets: &BTreeMap<String, Vec<u8>>) -> EntryInfo {
    let (kind, bits) = match mode.as_str() {
        LINK => (EntryKind::Symlink, 0o777),
        SUBMODULE => (EntryKind::Directory, 0o755),
        "100755" => (EntryKind::File, 0o755),
        _ => (EntryKind::File, 0o644),
    };
    let target = targets.get(id).filter(|_| kind == EntryKind::Symlink);
    EntryInfo {
        kind,
        size: 0,
        mode: bits,
        target: target.map(|target| Box::new(Location::from_bytes(target))),
    }
}

fn as_change(one: &Version, targets: &BTreeMap<String, Vec<u8>>) -> Option<Change> {
    let path = one.path.clone();
    let side = |side: &Option<TreeEntry>| side.as_ref().map(|one| entry(one, targets));
    match (side(&one.old), side(&one.new)) {
        (Some(old), Some(new)) => {
            let mut fields = Vec::new();
            if one.old.as_ref().map(|(_, id)| id) != one.new.as_ref().map(|(_, id)| id) {
                fields.push(ChangedField::Content);
            }
            if old.mode != new.mode {
                fields.push(ChangedField::Mode);
            }
            Change::between(path, old, new, fields)
        }
        (None, Some(new)) => Some(Change::added(path, new)),
        (Some(old), None) => Some(Change::deleted(path, old)),
        (None, None) => None,
    }
}
