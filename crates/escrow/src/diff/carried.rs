//! What a change that is no file's brings along and the files do not show, as lines of a patch that every tool skips.

use serde_json::Value;

use super::{PatchOptions, VersionContents, hunks, quoted};
use crate::error::Result;
use crate::model::text::escape_text;
use crate::model::{Carried, CarriedContents, CarriedFiles, Change, Detail, EntryInfo};

/// What the strategy says at length, and each version that the files do not have.
pub(super) fn remarks(
    change: &Change,
    contents: &dyn VersionContents,
    options: &PatchOptions,
) -> Result<Vec<u8>> {
    let mut text = Vec::new();
    if let Detail::Opaque { detail, .. } = &change.detail {
        let more = detail.get("more").and_then(Value::as_array);
        for line in more.into_iter().flatten().filter_map(Value::as_str) {
            add(&mut text, escape_text(line.as_bytes()).as_bytes());
        }
    }
    let hidden = |one: &&Carried| one.files != CarriedFiles::Same;
    let hidden: Vec<&Carried> = change.carried().iter().filter(hidden).collect();
    if hidden.is_empty() {
        return Ok(text);
    }
    let versions = contents.carried(change)?;
    for one in hidden {
        version(one, &versions, options, &mut text);
    }
    Ok(text)
}

fn version(one: &Carried, versions: &CarriedContents, options: &PatchOptions, to: &mut Vec<u8>) {
    let change = &one.change;
    let about = format!("{}: {} {}", one.within, change.kind.letter(), change.path);
    add(to, about.as_bytes());
    let mode = |side: &Option<EntryInfo>| side.as_ref().map(|side| (side.kind, side.mode));
    let (old, new) = (mode(&change.old), mode(&change.new));
    if let (Some((before, from)), Some((after, into))) = (old, new)
        && old != new
    {
        let (before, after) = (before.word(), after.word());
        let line = format!("{before} {from:04o} -> {after} {into:04o}");
        add(to, line.as_bytes());
    }
    let side = |id: &Option<String>| match id {
        None => Some(&[][..]),
        Some(id) => versions.get(id).map(Vec::as_slice),
    };
    let text = |bytes: &&[u8]| !bytes.contains(&0);
    match (side(&one.ids.0).filter(text), side(&one.ids.1).filter(text)) {
        (Some(old), Some(new)) if old == new => {}
        (Some(old), Some(new)) => {
            let (a, b) = (quoted(b"a/", &change.path), quoted(b"b/", &change.path));
            let shown = hunks(old, new, options, &a, &b);
            let shown = shown.strip_suffix(b"\n").unwrap_or(&shown);
            shown
                .split(|byte| *byte == b'\n')
                .for_each(|line| add(to, line));
        }
        _ => add(to, b"binary or large, not shown"),
    }
}

fn add(to: &mut Vec<u8>, line: &[u8]) {
    to.extend([b"# ", line, b"\n"].concat());
}
