//! What is said of a change of the history before it is released: that it cannot be, whose it is, what nothing else shows.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::history::{Commit, NAMED, SHOWN, add_line, is_released};
use crate::model::text::escape;
use crate::model::{Change, Detail};

/// Says that a change cannot be committed, and why.
pub(super) fn refuse(change: &mut Change, why: &str) {
    warn(change, vec![format!("cannot be committed: {why}")]);
    if let Detail::Opaque { detail, .. } = &mut change.detail {
        detail["refused"] = json!(why);
    }
}

/// Why a change of the history cannot be committed, if that is so.
pub(super) fn refused(change: &Change) -> Option<&str> {
    match &change.detail {
        Detail::Opaque { detail, .. } if is_released(change) => detail["refused"].as_str(),
        _ => None,
    }
}

/// Whose commits these are, if they are not the user's.
pub(super) fn strangers(commits: &[(&str, &Commit)], user: Option<&str>) -> Vec<String> {
    let Some(user) = user else {
        return Vec::new();
    };
    let mut all: BTreeMap<(&str, &str), (usize, String)> = BTreeMap::new();
    for (id, commit) in commits {
        let roles = [("author", &commit.author), ("committer", &commit.committer)];
        for (role, who) in roles {
            let twice = role == "committer" && *who == commit.author;
            if who != user && !twice {
                let said = all
                    .entry((role, who))
                    .or_insert_with(|| (0, commit.called(id)));
                said.0 += 1;
            }
        }
    }
    let line = |((role, who), (count, first)): ((&str, &str), (usize, String))| {
        let more = match count {
            1 => String::new(),
            count => format!(" and {} more", count - 1),
        };
        format!(
            "{role} {} of {first}{more} is not you ({user})",
            escape(who.as_bytes())
        )
    };
    all.into_iter().map(line).collect()
}

/// Refuses a reference that stands for anything but a commit, or a tag of one, and says who made the tag.
pub(super) fn look_at_tag(
    change: &mut Change,
    (name, tag): (&str, Option<&[u8]>),
    user: Option<&str>,
) {
    let text = tag.map(|tag| String::from_utf8_lossy(tag).into_owned());
    let text = text.unwrap_or_default();
    if text.lines().nth(1) != Some("type commit") {
        let why = "it stands for no commit, and what it holds is not shown; delete it inside";
        return refuse(change, why);
    }
    let tagger = text.lines().find_map(|line| line.strip_prefix("tagger "));
    let tagger = tagger.and_then(|text| Some(format!("{}>", text.rsplit_once('>')?.0)));
    if let (Some(tagger), Some(user)) = (tagger, user)
        && tagger != user
    {
        let tagger = escape(tagger.as_bytes());
        let said = format!("tagger {tagger} of {name} is not you ({user})");
        warn(change, vec![said]);
    }
    more(change, text.lines().map(str::to_owned));
}

/// Says these of a change, the first of them to people.
pub(super) fn warn(change: &mut Change, warnings: Vec<String>) {
    for one in warnings.iter().take(SHOWN) {
        add_line(change, one);
    }
    if warnings.len() > SHOWN {
        add_line(
            change,
            &format!("and {} more like it", warnings.len() - SHOWN),
        );
    }
    append(change, "warnings", warnings.into_iter().take(NAMED));
}

/// What is shown with the contents.
pub(super) fn more(change: &mut Change, lines: impl Iterator<Item = String>) {
    append(change, "more", lines);
}

fn append(change: &mut Change, key: &str, lines: impl Iterator<Item = String>) {
    let mut lines = lines.map(Value::from).peekable();
    if let (Some(_), Detail::Opaque { detail, .. }) = (lines.peek(), &mut change.detail) {
        if !detail[key].is_array() {
            detail[key] = json!([]);
        }
        if let Some(all) = detail[key].as_array_mut() {
            all.extend(lines);
        }
    }
}
