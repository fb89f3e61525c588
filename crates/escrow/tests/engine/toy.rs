//! A strategy without directories: the original is one JSON document of keys and values, and so is a sandbox of it. Nothing
//! here knows of trees, areas, inodes or the store, and no file is larger than a contract needs.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Cursor, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use escrow::event::Observer;
use escrow::model::*;
use escrow::strategy::*;
use serde_json::{Value, json};

pub(crate) struct Toy;

/// Keys and values.
pub(crate) type Map = BTreeMap<String, Vec<u8>>;

/// What the original was when the sandbox was made, and what it is. Of an original only the latter counts.
type Document = (Map, Map);

/// A sandbox: where its original is, and where it is itself.
type Open = (PathBuf, PathBuf);

/// What becomes of which document: keys with their old and new values.
type Swap = (PathBuf, Vec<(String, Option<Vec<u8>>, Option<Vec<u8>>)>);

fn damaged(what: impl ToString) -> StrategyError {
    let what = what.to_string();
    StrategyError::Damaged { what }
}

fn parse<T: serde::de::DeserializeOwned>(value: &Value) -> Result<T> {
    serde_json::from_value(value.clone()).map_err(damaged)
}

pub(crate) fn load(at: &Path) -> Result<Document> {
    serde_json::from_slice(&std::fs::read(at).map_err(damaged)?).map_err(damaged)
}

pub(crate) fn save(at: &Path, document: &Document) -> Result<()> {
    let new = at.with_extension("new");
    let text = serde_json::to_vec(document).map_err(damaged)?;
    let written = std::fs::write(&new, text);
    let synced = written.and_then(|()| std::fs::File::open(&new)?.sync_all());
    synced
        .and_then(|()| std::fs::rename(&new, at))
        .map_err(damaged)
}

fn edit(at: &Path, work: impl FnOnce(&mut Map)) -> Result<()> {
    let mut document = load(at)?;
    work(&mut document.1);
    save(at, &document)
}

fn put(map: &mut Map, key: &str, value: Option<Vec<u8>>) {
    map.remove(key);
    map.extend(value.map(|value| (key.to_owned(), value)));
}

fn differing(from: &Map, to: &Map) -> Vec<String> {
    let keys: BTreeSet<&String> = from.keys().chain(to.keys()).collect();
    let differs = |key: &&&String| from.get(**key) != to.get(**key);
    keys.iter()
        .filter(differs)
        .map(|key| (*key).clone())
        .collect()
}

fn path(key: &str) -> ResourcePath {
    ResourcePath::parse(key.as_bytes()).unwrap_or_default()
}

fn compare(from: &Map, to: &Map) -> DiffView {
    let change = |key: String| {
        let kind = match (from.get(&key), to.get(&key)) {
            (None, _) => ChangeKind::Added,
            (_, None) => ChangeKind::Deleted,
            _ => ChangeKind::Modified,
        };
        Change::opaque(path(&key), kind, json!(to.get(&key)))
    };
    DiffView::new(differing(from, to).into_iter().map(change).collect())
}

fn conflicts(keys: impl IntoIterator<Item = String>) -> Vec<Conflict> {
    let conflict = |key: String| Conflict::of(path(&key), "changed there since");
    keys.into_iter().map(conflict).collect()
}

fn swap(at: &Path, keys: Vec<String>, from: &Map, to: &Map) -> Intent {
    let value = |key: &String| (key.clone(), from.get(key).cloned(), to.get(key).cloned());
    Intent(json!([at, keys.iter().map(value).collect::<Vec<_>>()]))
}

impl Strategy for Toy {
    fn name(&self) -> &str {
        "toy"
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            isolates: true,
            prepares: true,
            undoes: true,
            survives: true,
            retryable: true,
            checkpoints: Checkpoints::Copy,
            ..Capabilities::default()
        }
    }

    fn probe(&self, _target: &Target, _area: Option<&Path>) -> Probe {
        Probe::yes("a document is all it needs")
    }

    fn create(&self, request: &CreateRequest<'_>) -> Result<Created> {
        let TargetLocation::Opaque(at) = &request.target.location else {
            return Err(unsupported("toy", "sandbox this", "it is no document"));
        };
        let own = Path::new(at).with_extension(request.plan_id.to_string());
        let document = match request.from {
            Some((other, snapshot)) => (
                load(&parse::<Open>(&other.metadata)?.1)?.0,
                parse(&snapshot.0)?,
            ),
            None => load(Path::new(at)).map(|(_, now)| (now.clone(), now))?,
        };
        save(&own, &document)?;
        let sandbox = SandboxRef {
            plan_id: request.plan_id,
            resource_id: request.target.resource_id,
            strategy_name: "toy".to_owned(),
            metadata: json!([at, own]),
        };
        let (message, warnings) = ("a document".to_owned(), Vec::new());
        Ok(Created {
            sandbox,
            message,
            warnings,
        })
    }

    fn open(&self, sandbox: &SandboxRef, _session: Session) -> Result<Box<dyn Sandbox>> {
        Ok(Box::new(Opened(parse(&sandbox.metadata)?)))
    }

    fn commit(&self, intent: &Intent, _observer: &dyn Observer) -> Result<()> {
        let (at, values): Swap = parse(&intent.0)?;
        let all = |map: &mut Map| {
            values
                .into_iter()
                .for_each(|(key, _, new)| put(map, &key, new))
        };
        edit(&at, all)
    }

    fn undo(&self, intent: &Intent, _observer: &dyn Observer) -> Result<RollbackReport> {
        let (at, mut values): Swap = parse(&intent.0)?;
        let now = load(&at)?.1;
        // What another process wrote is not ours to take back.
        values.retain(|(key, _, new)| now.get(key) == new.as_ref());
        let all = |map: &mut Map| {
            values
                .into_iter()
                .for_each(|(key, old, _)| put(map, &key, old))
        };
        edit(&at, all).map(|()| RollbackReport::default())
    }

    fn outcome(&self, intent: &Intent) -> Result<Outcome> {
        parse::<Swap>(&intent.0).map(|_| Outcome::NotDone)
    }

    fn check_undo(&self, intent: &Intent) -> Result<Vec<Conflict>> {
        let (at, mut values): Swap = parse(&intent.0)?;
        let now = load(&at)?.1;
        values.retain(|(key, _, new)| now.get(key) != new.as_ref());
        Ok(conflicts(values.into_iter().map(|(key, ..)| key)))
    }

    fn finish(&self, intent: Intent) -> Result<FinishedCommit> {
        let notes = Vec::new();
        Ok(FinishedCommit { intent, notes })
    }

    fn cleanup(&self, sandbox: &SandboxRef) -> Result<()> {
        let (_, own): Open = parse(&sandbox.metadata)?;
        let gone = !own.exists() || std::fs::remove_file(own).is_ok();
        gone.then_some(())
            .ok_or_else(|| damaged("it cannot be removed"))
    }
}

struct Opened(Open);

impl Sandbox for Opened {
    fn read(&self, path: &ResourcePath) -> Result<Box<dyn Read + Send>> {
        let found = load(&self.0.1)?.1.remove(&path.to_string());
        let found = found.ok_or_else(|| StrategyError::NotThere { path: path.clone() })?;
        Ok(Box::new(Cursor::new(found)))
    }

    fn write(&self, path: &ResourcePath, content: &mut dyn Read) -> Result<Change> {
        let (mut value, key, path) = (Vec::new(), path.to_string(), path.clone());
        let read = content.read_to_end(&mut value);
        read.map_err(|source| StrategyError::Input {
            path: path.clone(),
            source,
        })?;
        let mut kind = ChangeKind::Modified;
        edit(&self.0.1, |map| {
            kind = map.get(&key).map_or(ChangeKind::Added, |_| kind);
            put(map, &key, Some(value));
        })?;
        Ok(Change::opaque(path, kind, Value::Null))
    }

    fn diff(&self, from: Option<&Snapshot>, to: Option<&Snapshot>) -> Result<DiffView> {
        let (base, now) = load(&self.0.1)?;
        let (from, to) = (from.map(|one| parse(&one.0)), to.map(|one| parse(&one.0)));
        Ok(compare(&from.unwrap_or(Ok(base))?, &to.unwrap_or(Ok(now))?))
    }

    fn digests(&self, _changes: &[Change]) -> Result<digest::VersionDigests> {
        Ok(Vec::new())
    }

    fn rollback(&self, _observer: &dyn Observer) -> Result<String> {
        let now = load(&self.0.0)?.1;
        save(&self.0.1, &(now.clone(), now)).map(|()| "discarded".to_owned())
    }

    fn checkpoint(&self, _: Option<&Snapshot>, _: Purpose, _: &dyn Observer) -> Result<Snapshot> {
        Ok(Snapshot(json!(load(&self.0.1)?.1)))
    }

    fn retain(&self, _keep: &[Snapshot]) -> Result<()> {
        Ok(())
    }

    fn preview(&self, _options: &PreviewOptions) -> Result<Preview> {
        let ((base, now), there) = (load(&self.0.1)?, load(&self.0.0)?.1);
        let moved = differing(&base, &now)
            .into_iter()
            .filter(|key| there.get(key) != base.get(key));
        let (conflicts, diff) = (conflicts(moved), Arc::new(compare(&base, &now)));
        Ok(Preview {
            conflicts,
            diff,
            ..Preview::default()
        })
    }

    fn prepare(&self, request: &PrepareRequest<'_>) -> Result<StagedCommit> {
        let (now, there) = (load(&self.0.1)?.1, load(&self.0.0)?.1);
        let released = request.preview.released(request.on_conflict);
        let keys = released
            .changes
            .iter()
            .map(|change| change.path.to_string());
        let (intent, digests) = (swap(&self.0.0, keys.collect(), &there, &now), Vec::new());
        Ok(StagedCommit { intent, digests })
    }

    fn prepare_restore(&self, request: &RestoreRequest<'_>) -> Result<Intent> {
        let (from, to): (Map, Map) = (parse(&request.from.0)?, parse(&request.to.0)?);
        Ok(swap(&self.0.1, differing(&from, &to), &from, &to))
    }

    fn access(&self) -> Result<Access> {
        Ok(Access::default())
    }
}
