//! What errors of many members say, put together from what is known of each.

use super::{Error, chain};
use crate::model::text::Location;
use crate::model::{JournaledWork, ResourcePath};

/// What a failed commit says: why, what is as before, what is not, what was kept.
pub(super) fn begun(plan: &str, cause: &Error, work: JournaledWork, undo: bool) -> String {
    match (work, undo) {
        (_, true) => format!("the commit of the plan '{plan}' could not be undone completely"),
        (JournaledWork::Restore, _) => {
            format!("the plan '{plan}' was not restored: {}", chain(cause))
        }
        _ => format!("the plan '{plan}' was not committed: {}", chain(cause)),
    }
}

/// What is still to be done for each resource, and what is not known.
pub(super) fn forward(
    work: JournaledWork,
    plan: &str,
    failed: &[(String, String)],
    unknown: &[(String, Location, String)],
) -> String {
    let mut text = match work {
        JournaledWork::Rollback => format!("the plan '{plan}' is not wholly rolled back"),
        _ => format!(
            "the commit of the plan '{plan}' is past the point of no return and not finished"
        ),
    };
    let still = failed
        .iter()
        .map(|(resource, why)| format!("{resource}: {why}"));
    let asked = unknown.iter().map(|(resource, at, why)| {
        format!("whether '{resource}' ('{at}') was committed is not known: {why}")
    });
    for (number, one) in still.chain(asked).enumerate() {
        text.push_str(if number == 0 { ": " } else { "; " });
        text.push_str(&one);
    }
    text
}

pub(super) fn failed_commit(
    undone: &[String],
    not_undone: &[(String, String)],
    kept: &[(String, ResourcePath, Location)],
    left: &[String],
    lost: &[String],
) -> String {
    let mut text = String::new();
    if !undone.is_empty() {
        text = format!("{text}; restored: {}", undone.join(", "));
    }
    for (resource, why) in not_undone {
        text = format!("{text}; NOT restored: {resource}: {why}");
    }
    for (resource, path, at) in kept {
        text = format!("{text}; another program's version of {resource}:{path} is kept in '{at}'");
    }
    for why in left {
        text = format!("{text}; staged files could not be removed: {why}");
    }
    for what in lost {
        text = format!("{text}; {what}");
    }
    text
}
