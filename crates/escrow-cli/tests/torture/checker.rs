//! Says on which side a world came out, and what is left in it.
//!
//! Promise: it knows the file system only. What the engine says of itself does not count here.

use crate::*;

/// Where a world came out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Side {
    /// Every resource is as before.
    Old,
    /// Every resource holds the new state.
    New,
    /// There is no resource to report them apart by.
    Any,
    /// Neither: what differs.
    Torn(String),
}

impl Side {
    /// Whether it can be this one.
    pub(crate) fn may_be(&self, wanted: &Self) -> bool {
        self == wanted || *self == Self::Any
    }

    pub(crate) fn word(&self) -> &'static str {
        match self {
            Self::Old => "old",
            Self::New => "new",
            Self::Any => "any",
            Self::Torn(_) => "torn",
        }
    }
}

/// Looks at every original.
pub(crate) fn side(subject: &Subject) -> Side {
    // Where files have holes depends on the file system, and nothing here has any.
    let ignore = Ignore {
        hole_map: true,
        ..Ignore::default()
    };
    let (mut olds, mut news, mut torn) = (0, 0, Vec::new());
    for member in &subject.members {
        let now = signature(&member.original);
        let from_old = differences(&member.sides.old, &now, &ignore);
        let from_new = differences(&member.sides.new, &now, &ignore);
        let name = member.original.file_name().unwrap_or_default();
        let name = name.to_string_lossy();
        match (from_old.is_empty(), from_new.is_empty()) {
            (true, true) => {}
            (true, false) => olds += 1,
            (false, true) => news += 1,
            (false, false) => torn.push(format!(
                "{name} ({}): against old: {}; against new: {}",
                member.kind.short(),
                from_old.join(", "),
                from_new.join(", ")
            )),
        }
    }
    match (olds, news, torn.is_empty()) {
        (_, _, false) => Side::Torn(torn.join("; ")),
        (0, 0, _) => Side::Any,
        (_, 0, _) => Side::Old,
        (0, _, _) => Side::New,
        _ => Side::Torn(format!("{olds} resources are old and {news} are new")),
    }
}

/// Nothing is left of a plan that was cleaned up.
pub(crate) fn nothing_left(subject: &Subject) -> Result<(), String> {
    let left = leftovers(subject);
    match left.is_empty() {
        true => Ok(()),
        false => Err(left.join("; ")),
    }
}

/// What is left of a plan that was cleaned up.
pub(crate) fn leftovers(subject: &Subject) -> Vec<String> {
    let mut found = Vec::new();
    for room in ["sandboxes", "locks"] {
        for name in names(subject.home.join(room)) {
            found.push(format!("left in {room}: {name}"));
        }
    }
    let originals = subject.members.len();
    let there = names(&subject.place);
    if there.len() != originals {
        found.push(format!("beside the originals: {}", there.join(" ")));
    }
    for member in &subject.members {
        let hidden = names(&member.original);
        let hidden = hidden.iter().filter(|name| name.starts_with(".escrow"));
        found.extend(hidden.map(|name| format!("left in an original: {name}")));
        // What isolates nothing must have been left alone.
        if member.kind == Kind::None {
            let now = signature(&member.original);
            let differs = differences(&member.sides.old, &now, &Ignore::default());
            found.extend(differs.iter().map(|line| format!("not isolated: {line}")));
        }
    }
    found
}
