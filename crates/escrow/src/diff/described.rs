//! Changes of what is no file, line by line: rows of tables, definitions, settings, the history of a repository.
//!
//! Two different changes never give the same lines: each line of a text is a line of its own, with a sign in front of it, and
//! what cannot be seen in a line is escaped.

use std::fmt::Write as _;

use serde_json::Value;
use similar::{ChangeTag, TextDiff};

use crate::model::text::{escape, escape_json, escape_text};
use crate::model::{Change, ChangeKind, Detail, ResourcePath};

/// What a strategy says of a change that is no file's, line by line. A text that became another one is shown by its hunks, with
/// so many unchanged lines around each.
pub fn described(change: &Change, context: usize) -> Vec<String> {
    let Detail::Opaque { detail, .. } = &change.detail else {
        return Vec::new();
    };
    let text = |key: &str| detail.get(key).and_then(Value::as_str);
    match (text("before"), text("after")) {
        (None, None) => {
            let said = detail.get("lines").and_then(Value::as_array);
            let said = said.into_iter().flatten().filter_map(Value::as_str);
            said.map(line).collect()
        }
        (Some(old), Some(new)) if old != new => hunks(old, new, context),
        (old, new) => {
            let signed = |sign: char, text: Option<&str>| {
                let lines = text.into_iter().flat_map(|text| text.split('\n'));
                let lines = lines.map(|one| line(&format!("{sign} {one}")));
                lines.collect::<Vec<_>>()
            };
            [signed('-', old), signed('+', new)].concat()
        }
    }
}

/// A change that is no file's as lines of a patch that every tool skips.
pub(super) fn remarks(change: &Change, context: usize) -> Option<String> {
    let path = &change.path;
    let detail = match &change.detail {
        Detail::File(_) => return None,
        Detail::Row(row) => {
            let (before, after) = (
                escape_json(&row.before.value()),
                escape_json(&row.after.value()),
            );
            return Some(format!("# {path}: {before} -> {after}\n"));
        }
        Detail::Opaque { detail, .. } => detail,
    };
    let what = detail.get("what").and_then(Value::as_str);
    let what = what.map(|what| format!("{} ", escape(what.as_bytes())));
    let done = match change.kind {
        ChangeKind::Added | ChangeKind::Inserted => "added",
        ChangeKind::Deleted => "deleted",
        _ => "changed",
    };
    let mut text = format!("# {path}: {}{done}\n", what.unwrap_or_default());
    for line in described(change, context) {
        writeln!(text, "# {line}").expect("memory takes it");
    }
    Some(text)
}

/// What a zero byte would hide in a file that was text: the lines that changed, escaped, as lines of a patch that every tool skips. Of what
/// does not look like text any more only the remark.
pub(super) fn was_text(path: &ResourcePath, (old, new): (&[u8], &[u8]), context: usize) -> String {
    if old.is_empty() {
        return String::new();
    }
    let odd = |byte: &&u8| !matches!(byte, b'\t' | b'\n' | b'\r' | b' '..);
    if new.iter().filter(odd).count() > new.len() / 10 {
        return format!("# was text: {path}\n");
    }
    let mut text = format!("# was text, and has zero bytes now; escaped: {path}\n");
    let texts = [old, new].map(String::from_utf8_lossy);
    for line in hunks(&texts[0], &texts[1], context) {
        writeln!(text, "# {line}").expect("memory takes it");
    }
    text
}

/// One line that ends where it seems to end.
fn line(text: &str) -> String {
    let mut line = escape_text(text.as_bytes());
    if line.ends_with(' ') {
        line.pop();
        line.push_str("\\x20");
    }
    line
}

fn hunks(old: &str, new: &str, context: usize) -> Vec<String> {
    let (old, new): (Vec<&str>, Vec<&str>) = (old.split('\n').collect(), new.split('\n').collect());
    let diff = TextDiff::configure()
        .timeout(std::time::Duration::from_secs(5))
        .diff_slices(&old, &new);
    let mut shown = Vec::new();
    for hunk in diff.unified_diff().context_radius(context).iter_hunks() {
        // Of what is shown from its first line to its last one this says nothing.
        let all = hunk.ops().iter().map(|one| one.new_range().len());
        if all.sum::<usize>() < new.len() {
            shown.push(hunk.header().to_string());
        }
        for change in hunk.iter_changes() {
            let sign = match change.tag() {
                ChangeTag::Equal => ' ',
                ChangeTag::Delete => '-',
                ChangeTag::Insert => '+',
            };
            shown.push(line(&format!("{sign} {}", change.value())));
        }
    }
    shown
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn shown(before: Option<&str>, after: Option<&str>) -> Vec<String> {
        let detail = json!({"what": "view", "before": before, "after": after});
        let path = ResourcePath::root().join(b"v");
        described(&Change::opaque(path, ChangeKind::Modified, detail), 3)
    }

    #[test]
    fn texts_that_differ_are_never_shown_alike() {
        let texts = [
            "-- was: x\n select 2",
            "-- was:\n x select 2",
            "-- was: x\nselect 2",
            "-- was: x\\nselect 2",
            "-- was: x\\x0aselect 2",
            "-- was: x select 2",
            "-- was: x\u{a0}select 2",
            "-- was: x\u{3000}select 2",
            "-- was: x\u{ad}select 2",
            "-- was: x\tselect 2",
            "-- was: x\r\nselect 2",
            "-- was: x select 2 ",
            "-- was: x select 2\n",
            "-- was: x select 2\n\n",
            "",
        ];
        let mut all = Vec::new();
        for text in texts {
            all.push(shown(None, Some(text)));
            all.push(shown(Some(text), None));
            all.extend((text != "y").then(|| shown(Some("y"), Some(text))));
        }
        for lines in &all {
            assert!(
                lines
                    .iter()
                    .all(|line| line.trim_end() == line || line.len() == 2)
            );
        }
        let count = all.len();
        all.sort();
        all.dedup();
        assert_eq!(all.len(), count, "{all:#?}");
    }

    #[test]
    fn a_long_text_is_shown_where_it_changed() {
        let text = |tenth: &str| {
            let line = |number: usize| match number {
                10 => tenth.to_owned(),
                other => other.to_string(),
            };
            (0..20).map(line).collect::<Vec<_>>().join("\n")
        };
        let lines = shown(Some(&text("a")), Some(&text("b")));
        assert_eq!(lines.len(), 9, "{lines:?}");
        assert!(lines[0].starts_with("@@ "), "{lines:?}");
        assert_eq!(&lines[4..6], ["- a", "+ b"]);
        assert_eq!(shown(Some("a"), Some("b")), ["- a", "+ b"]);
    }
}
