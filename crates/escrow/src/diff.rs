//! A diff as text: a listing, a summary, or a patch that `patch -p1` and `git apply` take.

mod binary;
mod carried;
mod described;
mod renames;

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::io::{Read, Write};

use similar::TextDiff;

use crate::error::{Error, Result};
use crate::model::counted::is_dir;
use crate::model::hunks::{HunkRange, is_divisible, lines};
use crate::model::{
    CarriedContents, Change, ChangeKind, ChangedField, ChosenHunks, CountedChanges, DiffView,
    EntryInfo, EntryKind, ResourcePath,
};

pub use described::described;
pub use renames::{Rename, renames};

/// A file above this size is named in a patch, not shown.
const SHOWN: u64 = 4 << 20;

/// The same where a patch may be binary.
const SHOWN_BINARY: u64 = 64 << 20;

/// How many unchanged lines stand around a change, unless that is said.
pub const CONTEXT: usize = 3;

/// How a patch is written.
#[derive(Debug, Clone, Copy)]
pub struct PatchOptions {
    /// So many unchanged lines stand around each change.
    pub context: usize,
    /// Files that were moved are named as such.
    pub renames: bool,
    /// Binary and large files are in it too, in a form that only `git apply` takes.
    pub binary: bool,
    /// Words are marked that changed in a line: for people, not to be applied.
    pub words: bool,
}

impl Default for PatchOptions {
    fn default() -> Self {
        Self {
            context: CONTEXT,
            renames: false,
            binary: false,
            words: false,
        }
    }
}

/// Where the bytes of both versions come from.
pub trait VersionContents {
    /// The original's version of a file.
    fn original(&self, path: &ResourcePath) -> Result<Box<dyn Read + Send>>;
    /// The sandbox's version of a file.
    fn sandbox(&self, path: &ResourcePath) -> Result<Box<dyn Read + Send>>;
    /// Versions that a change carries and the files do not show.
    fn carried(&self, _change: &Change) -> Result<CarriedContents> {
        Ok(CarriedContents::new())
    }
}

/// How many changes of each kind there are.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
pub struct ChangeSummary {
    /// Added paths.
    pub added: usize,
    /// Modified paths.
    pub modified: usize,
    /// Deleted paths.
    pub deleted: usize,
    /// Paths that are another kind of thing now.
    pub type_changed: usize,
    /// Paths of which only mode, owner or attributes changed.
    pub mode_changed: usize,
    /// Directories among them, which are not counted above: but for those that came or went with what is in them.
    pub directories: usize,
}

impl ChangeSummary {
    /// The sum of a view.
    pub fn of(view: &DiffView) -> Self {
        Self::without(view, &CountedChanges::default())
    }

    /// The same without what is counted apart.
    pub fn without(view: &DiffView, counted: &CountedChanges) -> Self {
        let mut summary = Self::default();
        let parents = view.changes.iter().map(|change| &change.path);
        let parents = parents.filter_map(|path| Some(path.split_names()?.0));
        let parents: HashSet<&[u8]> = parents.collect();
        let listed = view.changes.iter();
        for change in listed.filter(|change| !counted.covers(&change.path)) {
            let comes = matches!(change.kind, ChangeKind::Added | ChangeKind::Deleted);
            *match change.kind {
                _ if is_dir(change) && comes && parents.contains(change.path.as_bytes()) => {
                    continue;
                }
                _ if is_dir(change) => &mut summary.directories,
                ChangeKind::Added | ChangeKind::Inserted => &mut summary.added,
                ChangeKind::Modified | ChangeKind::Updated => &mut summary.modified,
                ChangeKind::Deleted => &mut summary.deleted,
                ChangeKind::TypeChanged => &mut summary.type_changed,
                ChangeKind::ModeChanged => &mut summary.mode_changed,
            } += 1;
        }
        summary
    }
}

/// One line for each change: a letter, a tab, the escaped path; of what was moved or copied, `R` or `C`, how much of it
/// is the same, and both paths.
pub fn name_status(
    view: &DiffView,
    renames: &BTreeMap<ResourcePath, Rename>,
    to: &mut dyn Write,
) -> Result<()> {
    let moved = moved_from(renames);
    for change in &view.changes {
        let path = &change.path;
        match renames.get(path) {
            _ if change.kind == ChangeKind::Deleted && moved.contains(path) => Ok(()),
            Some(rename) => {
                let letter = if rename.copied { 'C' } else { 'R' };
                let (from, similarity) = (&rename.from, rename.similarity);
                writeln!(to, "{letter}{similarity:03}\t{from}\t{path}")
            }
            None => writeln!(to, "{}\t{path}", change.kind.letter()),
        }
        .map_err(Error::Output)?;
    }
    Ok(())
}

/// The paths from which something was moved away.
pub fn moved_from(renames: &BTreeMap<ResourcePath, Rename>) -> HashSet<&ResourcePath> {
    let moved = renames.values().filter(|one| !one.copied);
    moved.map(|one| &one.from).collect()
}

/// One line for each change: the escaped path.
pub fn name_only(view: &DiffView, to: &mut dyn Write) -> Result<()> {
    for change in &view.changes {
        writeln!(to, "{}", change.path).map_err(Error::Output)?;
    }
    Ok(())
}

/// The changes as a unified patch in git's form.
///
/// Text is shown line by line; what is binary or very large is named with its sizes. Owners and
/// attributes have no place in a patch: they are named on a line of their own. Rows, definitions and everything else that is no
/// file stand on lines that begin with `#`, in full.
pub fn patch(
    view: &DiffView,
    contents: &dyn VersionContents,
    options: &PatchOptions,
    to: &mut dyn Write,
) -> Result<()> {
    let mut renames = match options.renames {
        true => renames(view, contents)?,
        false => BTreeMap::new(),
    };
    // Git does not take a copy back.
    renames.retain(|_, one| !one.copied);
    let moved = moved_from(&renames);
    for change in &view.changes {
        let rename = renames.get(&change.path);
        let one = |change: &Change, to: &mut dyn Write| one(change, rename, contents, options, to);
        match change.kind {
            ChangeKind::Deleted if moved.contains(&change.path) => {}
            ChangeKind::TypeChanged => {
                let path = || change.path.clone();
                match (&change.old, &change.new) {
                    (Some(old), Some(new)) => {
                        one(&Change::deleted(path(), old.clone()), to)?;
                        one(&Change::added(path(), new.clone()), to)?;
                    }
                    _ => one(change, to)?,
                }
            }
            _ => one(change, to)?,
        }
    }
    Ok(())
}

/// The difference of two texts, in unified form.
pub fn text(old: &[u8], new: &[u8], from: &str, into: &str) -> Vec<u8> {
    let options = PatchOptions::default();
    hunks(old, new, &options, from.as_bytes(), into.as_bytes())
}

/// The hunks of a changed text file, of which some can be released.
#[derive(Debug)]
pub struct FileHunks {
    all: ChosenHunks,
    /// How each is shown in a patch.
    pub texts: Vec<Vec<u8>>,
}

impl FileHunks {
    /// The hunks of a change; `None` of what is released only as a whole: what is no text, is very large, came or went, or
    /// changed in more than its content.
    pub fn of(change: &Change, contents: &dyn VersionContents) -> Result<Option<Self>> {
        if !change.is_of_content() {
            return Ok(None);
        }
        let old = side(change.old.as_ref(), &|| contents.original(&change.path))?;
        let new = side(change.new.as_ref(), &|| contents.sandbox(&change.path))?;
        let (DiffSide::Text(old), DiffSide::Text(new)) = (old, new) else {
            return Ok(None);
        };
        if !is_divisible(&old) || !is_divisible(&new) {
            return Ok(None);
        }
        let hunks = split(&old, &new, &PatchOptions::default());
        let (ranges, texts): (_, Vec<_>) = hunks.into_iter().unzip();
        let all = ChosenHunks::new(&old, &new, ranges);
        Ok((!texts.is_empty()).then_some(Self { all, texts }))
    }

    /// Those with these numbers.
    pub fn choose(&self, numbers: &BTreeSet<usize>) -> ChosenHunks {
        self.all.only(numbers)
    }
}

/// How many lines a change adds and takes away; `None` of what is not shown line by line.
pub fn line_counts(
    change: &Change,
    contents: &dyn VersionContents,
) -> Result<Option<(usize, usize)>> {
    let file = |facts: &EntryInfo| facts.kind == EntryKind::File;
    let other = |facts: Option<&EntryInfo>| facts.is_some_and(|facts| !file(facts));
    let sides = (change.old.as_ref(), change.new.as_ref());
    let content = match change.kind {
        ChangeKind::Added | ChangeKind::Deleted => true,
        ChangeKind::Modified => change.fields.contains(&ChangedField::Content),
        _ => false,
    };
    if !content || other(sides.0) || other(sides.1) || sides == (None, None) {
        return Ok(None);
    }
    let old = side(sides.0, &|| contents.original(&change.path));
    let new = side(sides.1, &|| contents.sandbox(&change.path));
    let (old, new) = match (old, new) {
        (Err(error @ Error::Denied { .. }), _) | (_, Err(error @ Error::Denied { .. })) => {
            return Err(error);
        }
        (Ok(DiffSide::Text(old)), Ok(DiffSide::Text(new))) => (old, new),
        // Of what is gone meanwhile, or closed to this user, nothing is counted; the change is listed all the same.
        _ => return Ok(None),
    };
    let (old, new) = (lines(&old), lines(&new));
    let (mut plus, mut minus) = (0, 0);
    for part in compared(&old, &new).ops() {
        let (tag, before, after) = part.as_tag_tuple();
        if tag != similar::DiffTag::Equal {
            plus += after.len();
            minus += before.len();
        }
    }
    Ok(Some((plus, minus)))
}

fn one(
    change: &Change,
    rename: Option<&Rename>,
    contents: &dyn VersionContents,
    options: &PatchOptions,
    to: &mut dyn Write,
) -> Result<()> {
    let moved = rename.and_then(|rename| moved(change, rename));
    let change = moved.as_ref().unwrap_or(change);
    let before = rename.map_or(&change.path, |rename| &rename.from);
    let mut write = |bytes: &[u8]| to.write_all(bytes).map_err(Error::Output);
    // What is no file has no place in a patch of files, but nothing that is released is left out.
    if let Some(remarks) = described::remarks(change, options.context) {
        write(remarks.as_bytes())?;
        return write(&carried::remarks(change, contents, options)?);
    }
    for remark in remarks(change) {
        write(format!("# {remark}: {}\n", change.path).as_bytes())?;
    }
    let of = |facts: &EntryInfo| matches!(facts.kind, EntryKind::File | EntryKind::Symlink);
    let shown = change.new.as_ref().or(change.old.as_ref()).is_some_and(of);
    let only_remarks = change.kind == ChangeKind::ModeChanged && git_modes(change).is_none();
    if !shown || only_remarks {
        return Ok(());
    }
    let (a, b) = (quoted(b"a/", before), quoted(b"b/", &change.path));
    if change.kind == ChangeKind::ModeChanged {
        return write(&header(change, &a, &b));
    }
    let original = || contents.original(before);
    let sandbox = || contents.sandbox(&change.path);
    let old = match side(change.old.as_ref(), &original) {
        Err(Error::Fs(error)) if error.is_absent() || error.leaves() => {
            let gone = format!("# the original's version is gone: {}\n", change.path);
            return write(gone.as_bytes());
        }
        answer => answer?,
    };
    let new = side(change.new.as_ref(), &sandbox)?;
    let null = b"/dev/null".to_vec();
    let mut head = header(change, &a, &b);
    if let Some(rename) = rename {
        let word = if rename.copied { "copy" } else { "rename" };
        head.extend(format!("similarity index {}%\n", rename.similarity).into_bytes());
        for (which, path) in [("from", &rename.from), ("to", &change.path)] {
            head.extend(format!("{word} {which} ").into_bytes());
            head.extend([quoted(b"", path), b"\n".to_vec()].concat());
        }
    }
    let from = if change.old.is_some() {
        a
    } else {
        null.clone()
    };
    let into = if change.new.is_some() { b } else { null };
    match (old, new) {
        // The same bytes elsewhere, whatever they are.
        _ if rename.is_some_and(|rename| rename.similarity == 100) => write(&head),
        (DiffSide::Text(old), DiffSide::Text(new)) => {
            write(&head)?;
            write(&hunks(&old, &new, options, &from, &into))
        }
        _ if options.binary && is_shown_binary(change) => {
            let bytes = |facts: Option<&EntryInfo>, open: &Opener<'_>| match facts {
                Some(_) => read_side(SHOWN_BINARY, open),
                None => Ok(Some(Vec::new())),
            };
            let sides = (
                bytes(change.old.as_ref(), &original)?,
                bytes(change.new.as_ref(), &sandbox)?,
            );
            let (Some(old), Some(new)) = sides else {
                return write(sizes(change).as_bytes());
            };
            let name = |facts: Option<&EntryInfo>, bytes: &[u8]| match facts {
                Some(_) => binary::blob_name(bytes),
                None => "0".repeat(40),
            };
            write(&head)?;
            let (from, into) = (
                name(change.old.as_ref(), &old),
                name(change.new.as_ref(), &new),
            );
            write(format!("index {from}..{into}\n").as_bytes())?;
            write(&binary::literals(&old, &new))
        }
        (old, new) => {
            write(sizes(change).as_bytes())?;
            if let (DiffSide::Text(old), DiffSide::Binary(new)) = (old, new) {
                write(described::was_text(&change.path, (&old, &new), options.context).as_bytes())?;
            }
            write(&head)?;
            // Without this line git would skip what follows; with it, it asks for more and refuses.
            let index =
                |side: Option<&EntryInfo>| if side.is_some() { "0000001" } else { "0000000" };
            let (old, new) = (index(change.old.as_ref()), index(change.new.as_ref()));
            write(format!("index {old}..{new}\n").as_bytes())?;
            write(&[b"Binary files ", &*from, b" and ", &into, b" differ\n"].concat())
        }
    }
}

/// A file that came from elsewhere, as a change of what it was there.
fn moved(change: &Change, rename: &Rename) -> Option<Change> {
    let (old, new) = (rename.old.clone(), change.new.clone()?);
    let mut fields = vec![ChangedField::Content];
    if old.mode != new.mode {
        fields.push(ChangedField::Mode);
    }
    Change::between(change.path.clone(), old, new, fields)
}

/// What stands above the line by which git says that a patch cannot show everything. `git apply`
/// refuses such a patch as a whole instead of doing half of it.
/// Whether a patch can hold both versions of a file, whatever they are.
fn is_shown_binary(change: &Change) -> bool {
    let mut sides = change.old.iter().chain(&change.new);
    sides.all(|facts| facts.size <= SHOWN_BINARY)
}

fn sizes(change: &Change) -> String {
    let size = |facts: Option<&EntryInfo>| facts.map_or(0, |facts| facts.size);
    let (old, new) = (size(change.old.as_ref()), size(change.new.as_ref()));
    let word = if old.max(new) > SHOWN {
        "large"
    } else {
        "binary"
    };
    format!(
        "# {word} file, not shown ({old} -> {new} bytes): {}\n",
        change.path
    )
}

/// What has no place in a patch, for a line of its own that every tool skips.
fn remarks(change: &Change) -> Vec<String> {
    let mut remarks = Vec::new();
    let facts = change.new.as_ref().or(change.old.as_ref());
    let kind = facts.map_or(EntryKind::File, |facts| facts.kind);
    if !matches!(kind, EntryKind::File | EntryKind::Symlink) {
        let done = match change.kind {
            ChangeKind::Added => "added",
            ChangeKind::Deleted => "deleted",
            _ => "changed",
        };
        remarks.push(format!("{} {done}", kind.word()));
    }
    if let (Some(old), Some(new), EntryKind::File) = (&change.old, &change.new, kind) {
        let other_bits = (old.mode ^ new.mode) & !0o111 != 0;
        if old.mode != new.mode && (other_bits || git_modes(change).is_none()) {
            let (old, new) = (old.mode, new.mode);
            remarks.push(format!("mode changed from {old:04o} to {new:04o}"));
        }
    }
    for (field, word) in [
        (ChangedField::Owner, "owner"),
        (ChangedField::Xattrs, "attributes"),
    ] {
        if change.fields.contains(&field) {
            remarks.push(format!("{word} changed"));
        }
    }
    remarks
}

/// Everything above the hunks.
fn header(change: &Change, a: &[u8], b: &[u8]) -> Vec<u8> {
    let mut head = [b"diff --git ", a, b" ", b, b"\n"].concat();
    let mut line = |text: String| {
        head.extend_from_slice(text.as_bytes());
        head.push(b'\n');
    };
    match (&change.old, &change.new) {
        (Some(old), None) => {
            line(format!("deleted file mode {:06o}", git_mode(old)));
            if is_empty(old) {
                line(format!("index {EMPTY}..0000000"));
            }
        }
        (None, Some(new)) => {
            line(format!("new file mode {:06o}", git_mode(new)));
            if is_empty(new) {
                line(format!("index 0000000..{EMPTY}"));
            }
        }
        (Some(_), Some(_)) if let Some((old, new)) = git_modes(change) => {
            line(format!("old mode {old:06o}"));
            line(format!("new mode {new:06o}"));
        }
        // Without its mode git takes the target for a file.
        (Some(old), Some(_)) if old.kind == EntryKind::Symlink => {
            line(format!("index 0000001..0000002 {:06o}", git_mode(old)));
        }
        _ => {}
    }
    head
}

/// By what git calls the empty file, `patch` knows that one comes or goes: there is no line of it.
const EMPTY: &str = "e69de29";

fn is_empty(facts: &EntryInfo) -> bool {
    facts.kind == EntryKind::File && facts.size == 0
}

/// The mode of a file or link with its type, as git writes it.
fn git_mode(facts: &EntryInfo) -> u32 {
    match facts.kind {
        EntryKind::Symlink => 0o120_000,
        _ => 0o100_000 | u32::from(facts.mode),
    }
}

/// The two modes of a file that became executable or no longer is: git knows no other change of a mode, and refuses one.
fn git_modes(change: &Change) -> Option<(u32, u32)> {
    let mode = |facts: &EntryInfo| 0o100_644 | if facts.mode & 0o100 != 0 { 0o111 } else { 0 };
    let file = |facts: &&EntryInfo| facts.kind == EntryKind::File;
    let old = change.old.as_ref().filter(file).map(mode)?;
    let new = change.new.as_ref().filter(file).map(mode)?;
    (old != new).then_some((old, new))
}

enum DiffSide {
    Text(Vec<u8>),
    /// Not large, but with zeros.
    Binary(Vec<u8>),
    Opaque,
}

/// Opens one version of a file.
type Opener<'a> = dyn Fn() -> Result<Box<dyn Read + Send>> + 'a;

/// The bytes of one version; `None` where there are more than `limit`.
fn read_side(limit: u64, open: &Opener<'_>) -> Result<Option<Vec<u8>>> {
    let mut bytes = Vec::new();
    let read = open()?.take(limit + 1).read_to_end(&mut bytes);
    read.map_err(Error::Output)?;
    Ok((bytes.len() as u64 <= limit).then_some(bytes))
}

fn side(facts: Option<&EntryInfo>, open: &Opener<'_>) -> Result<DiffSide> {
    let Some(facts) = facts else {
        return Ok(DiffSide::Text(Vec::new()));
    };
    if let Some(target) = &facts.target {
        return Ok(DiffSide::Text(target.as_bytes().to_vec()));
    }
    if facts.size > SHOWN {
        return Ok(DiffSide::Opaque);
    }
    Ok(match read_side(SHOWN, open)? {
        Some(bytes) if !bytes.contains(&0) => DiffSide::Text(bytes),
        Some(bytes) => DiffSide::Binary(bytes),
        None => DiffSide::Opaque,
    })
}

fn compared<'a>(old: &'a [&'a [u8]], new: &'a [&'a [u8]]) -> TextDiff<'a, 'a, [u8]> {
    TextDiff::configure()
        .timeout(std::time::Duration::from_secs(5))
        .diff_slices(old, new)
}

fn hunks(old: &[u8], new: &[u8], options: &PatchOptions, from: &[u8], into: &[u8]) -> Vec<u8> {
    let all = split(old, new, options);
    let mut body = Vec::new();
    if !all.is_empty() {
        // A tab ends a name that has spaces.
        let end = |name: &[u8]| {
            if name.contains(&b' ') {
                &b"\t\n"[..]
            } else {
                b"\n"
            }
        };
        body.extend([b"--- ", from, end(from), b"+++ ", into, end(into)].concat());
    }
    body.extend(all.into_iter().flat_map(|(_, text)| text));
    body
}

/// The hunks between two texts: which lines they are of, and how they are shown.
fn split(old: &[u8], new: &[u8], options: &PatchOptions) -> Vec<(HunkRange, Vec<u8>)> {
    let (old, new) = (lines(old), lines(new));
    let diff = compared(&old, &new);
    let mut all = Vec::new();
    for hunk in diff
        .unified_diff()
        .context_radius(options.context)
        .iter_hunks()
    {
        let (Some(first), Some(last)) = (hunk.ops().first(), hunk.ops().last()) else {
            continue;
        };
        let range = HunkRange {
            old: first.old_range().start..last.old_range().end,
            new: first.new_range().start..last.new_range().end,
        };
        let mut body = format!("{}\n", hunk.header()).into_bytes();
        if options.words {
            let (mut before, mut after) = (Vec::new(), Vec::new());
            for change in hunk.iter_changes() {
                let line: &[u8] = change.value();
                if change.tag() != similar::ChangeTag::Insert {
                    before.extend_from_slice(line);
                }
                if change.tag() != similar::ChangeTag::Delete {
                    after.extend_from_slice(line);
                }
            }
            mark_words(&before, &after, &mut body);
            all.push((range, body));
            continue;
        }
        for change in hunk.iter_changes() {
            body.push(match change.tag() {
                similar::ChangeTag::Equal => b' ',
                similar::ChangeTag::Delete => b'-',
                similar::ChangeTag::Insert => b'+',
            });
            let line: &[u8] = change.value();
            body.extend_from_slice(line);
            if !line.ends_with(b"\n") {
                body.extend_from_slice(b"\n\\ No newline at end of file\n");
            }
        }
        all.push((range, body));
    }
    all
}

/// The lines of a hunk, with the words that went and came as git marks them.
fn mark_words(before: &[u8], after: &[u8], body: &mut Vec<u8>) {
    let diff = TextDiff::configure()
        .timeout(std::time::Duration::from_secs(5))
        .diff_words(before, after);
    for part in diff.ops() {
        let (mut went, mut came) = (Vec::new(), Vec::new());
        for change in diff.iter_changes(part) {
            let word: &[u8] = change.value();
            match change.tag() {
                similar::ChangeTag::Equal => body.extend_from_slice(word),
                similar::ChangeTag::Delete => went.extend_from_slice(word),
                similar::ChangeTag::Insert => came.extend_from_slice(word),
            }
        }
        for (text, open, close) in [(went, b"[-", b"-]"), (came, b"{+", b"+}")] {
            for line in lines(&text) {
                let (words, end) = match line.strip_suffix(b"\n") {
                    Some(words) => (words, &b"\n"[..]),
                    None => (line, &b""[..]),
                };
                if !words.is_empty() {
                    body.extend([&open[..], words, &close[..]].concat());
                }
                body.extend_from_slice(end);
            }
        }
    }
    if body.last().is_some_and(|last| *last != b'\n') {
        body.push(b'\n');
    }
}

/// A name as git writes it in a patch: plain where it is plain, else quoted as in C.
fn quoted(prefix: &[u8], path: &ResourcePath) -> Vec<u8> {
    let name = [prefix, path.as_bytes()].concat();
    let plain = |byte: &u8| byte.is_ascii_graphic() && !b"\"\\".contains(byte) || *byte == b' ';
    if name.iter().all(plain) {
        return name;
    }
    let mut text = vec![b'"'];
    for byte in name {
        match byte {
            b'"' | b'\\' => text.extend([b'\\', byte]),
            b'\n' => text.extend(b"\\n"),
            b'\t' => text.extend(b"\\t"),
            _ if byte.is_ascii_graphic() || byte == b' ' => text.push(byte),
            _ => text.extend(format!("\\{byte:03o}").into_bytes()),
        }
    }
    text.push(b'"');
    text
}
