//! Reads intents of earlier versions, which were stored in the journal itself, and converts them to records.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;

use super::intent::{IntentEntry, IntentRecords, RecordWriter};
use super::{DirUpdate, KeptLink, TreeIntent};
use crate::fs::Fingerprint;
use crate::model::ResourcePath;
use crate::model::text::Location;
use crate::strategy::Intent;
use crate::strategy::error::{Result, StrategyError};
use crate::strategy::tree::{self, Original};

#[derive(Deserialize)]
struct InlineIntent {
    original: Original,
    area: Location,
    steps: Vec<InlineStep>,
    links: Vec<KeptLink>,
    directories: Vec<DirUpdate>,
    linked: Vec<ResourcePath>,
    marked: Vec<(ResourcePath, Vec<Vec<u8>>)>,
    #[serde(default)]
    own: Option<Location>,
    finished: bool,
}

#[derive(Deserialize)]
struct InlineStep {
    path: ResourcePath,
    slot: u32,
    old: Option<Fingerprint>,
    old_below: Vec<(ResourcePath, Fingerprint)>,
    new: Option<Fingerprint>,
    below: Vec<(ResourcePath, Fingerprint)>,
}

/// Whether all of it is in the journal.
pub(super) fn is_inline(intent: &Intent) -> bool {
    intent.0.get("steps").is_some()
}

/// Whether files of the sandbox became the original's.
pub(super) fn shares(intent: &Intent) -> bool {
    let linked = intent.0.get("linked").and_then(|linked| linked.as_array());
    linked.is_some_and(|linked| !linked.is_empty())
}

pub(super) fn read(intent: &Intent) -> Result<TreeIntent> {
    let inline: InlineIntent = tree::parse(&intent.0, "the intent")?;
    let bytes = encode(&inline).map_err(|error| StrategyError::Damaged {
        what: format!("the intent cannot be encoded ({error})"),
    })?;
    let records = IntentRecords::decode(bytes).ok_or_else(|| StrategyError::Damaged {
        what: "the intent is invalid".to_owned(),
    })?;
    Ok(TreeIntent {
        original: inline.original,
        area: inline.area,
        own: inline.own,
        part: None,
        finished: inline.finished,
        kept_until: None,
        records,
    })
}

fn encode(inline: &InlineIntent) -> std::io::Result<Vec<u8>> {
    let mut writer = RecordWriter::new(Vec::new())?;
    let marked: BTreeMap<_, _> = inline.marked.iter().cloned().collect();
    let linked: BTreeSet<&ResourcePath> = inline.linked.iter().collect();
    let entry =
        |path: &ResourcePath, old: Option<Fingerprint>, new: Option<Fingerprint>| IntentEntry {
            path: path.clone(),
            old,
            new,
            linked: linked.contains(path),
            marks: marked.get(path).cloned().unwrap_or_default(),
        };
    for step in &inline.steps {
        let mut below: BTreeMap<&ResourcePath, (Option<Fingerprint>, Option<Fingerprint>)> =
            BTreeMap::new();
        for (path, seen) in &step.old_below {
            below.entry(path).or_default().0 = Some(*seen);
        }
        for (path, seen) in &step.below {
            below.entry(path).or_default().1 = Some(*seen);
        }
        for (path, (old, new)) in below {
            writer.entry(&entry(path, old, new))?;
        }
        writer.step(step.slot, &entry(&step.path, step.old, step.new))?;
    }
    inline.links.iter().try_for_each(|link| writer.link(link))?;
    for dressing in &inline.directories {
        writer.directory(dressing)?;
    }
    Ok(writer.end()?.0)
}
