//! A strategy without directories: the original is one JSON document of keys and values, and so is a sandbox of it.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Cursor, Read};
use std::path::{Path, PathBuf};

use escrow::event::Observer;
use escrow::model::*;
use escrow::strategy::*;
use serde_json::{Value, json};

pub(crate) struct Toy;

/// Keys and values.
pub(crate) type Map = BTreeMap<String, Vec<u8>>;

/// What the original was when the sandbox was made, and what it is. Of an original only the latter counts.
type Document = (Map, Map);

/// Where the original is, and where the sandbox is.
#[derive(serde::Deserialize)]
struct Opened(PathBuf, PathBuf);

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
    std::fs::write(&new, json!(document).to_string()).map_err(damaged)?;
    let synced = std::fs::File::open(&new).and_then(|file| file.sync_all());
    synced.map_err(damaged)?;
    std::fs::rename(&new, at).map_err(damaged)
}

fn put(at: &Path, values: impl Iterator<Item = (String, Option<Vec<u8>>)>) -> Result<()> {
    let mut document = load(at)?;
    for (key, value) in values {
        document.1.remove(&key);
        document.1.extend(value.map(|value| (key, value)));
    }
    save(at, &document)
}

fn differing(from: &Map, to: &Map) -> Vec<String> {
    let mut keys: BTreeSet<&String> = from.keys().chain(to.keys()).collect();
    keys.retain(|key| from.get(*key) != to.get(*key));
    keys.into_iter().cloned().collect()
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

fn path(key: &str) -> ResourcePath {
    ResourcePath::parse(key.as_bytes()).unwrap_or_default()
}

fn conflict(key: String) -> Conflict {
    Conflict::of(path(&key), "changed there since")
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
            promises: false,
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
            Some((other, snapshot)) => {
                let other: Opened = parse(&other.metadata)?;
                (load(&other.1)?.0, parse(&snapshot.0)?)
            }
            None => load(Path::new(at)).map(|(_, now)| (now.clone(), now))?,
        };
        save(&own, &document)?;
        Ok(Created {
            sandbox: parse(&json!({"plan_id": request.plan_id, "strategy_name": "toy",
                "resource_id": request.target.resource_id, "metadata": [at, own]}))?,
            message: "a document".to_owned(),
            warnings: Vec::new(),
        })
    }

    fn open(&self, sandbox: &SandboxRef, _: Session, _: &[Intent]) -> Result<Box<dyn Sandbox>> {
        Ok(Box::new(parse::<Opened>(&sandbox.metadata)?))
    }

    fn commit(&self, intent: &Intent, _observer: &dyn Observer) -> Result<()> {
        let (at, values): Swap = parse(&intent.0)?;
        put(&at, values.into_iter().map(|(key, _, new)| (key, new)))
    }

    fn undo(&self, intent: &Intent, _observer: &dyn Observer) -> Result<RollbackReport> {
        let (at, mut values): Swap = parse(&intent.0)?;
        // What another process wrote is not ours to take back.
        let now = load(&at)?.1;
        values.retain(|(key, _, new)| now.get(key) == new.as_ref());
        put(&at, values.into_iter().map(|(key, old, _)| (key, old)))?;
        Ok(RollbackReport::default())
    }

    fn outcome(&self, intent: &Intent) -> Result<Outcome> {
        parse::<Swap>(&intent.0).map(|_| Outcome::NotDone)
    }

    fn check_undo(&self, intent: &Intent) -> Result<Vec<Conflict>> {
        let (at, mut values): Swap = parse(&intent.0)?;
        let now = load(&at)?.1;
        values.retain(|(key, _, new)| now.get(key) != new.as_ref());
        Ok(values.into_iter().map(|(key, ..)| conflict(key)).collect())
    }

    fn cleanup(&self, sandbox: &SandboxRef, _: &Target, _: Option<&Path>) -> Result<()> {
        if sandbox.metadata.is_null() {
            return Ok(());
        }
        let own = parse::<Opened>(&sandbox.metadata)?.1;
        let gone = !own.exists() || std::fs::remove_file(own).is_ok();
        gone.then_some(()).ok_or_else(|| damaged("it stays"))
    }
}

impl Sandbox for Opened {
    fn read(&self, path: &ResourcePath) -> Result<Box<dyn Read + Send>> {
        let found = load(&self.1)?.1.remove(&path.to_string());
        let found = found.ok_or_else(|| StrategyError::NotThere { path: path.clone() })?;
        Ok(Box::new(Cursor::new(found)))
    }

    fn write(&self, path: &ResourcePath, content: &mut dyn Read) -> Result<Change> {
        let (mut value, key, at) = (Vec::new(), path.to_string(), path.clone());
        let failed = |source| StrategyError::Input { path: at, source };
        content.read_to_end(&mut value).map_err(failed)?;
        let known = load(&self.1)?.1.contains_key(&key);
        put(&self.1, [(key, Some(value))].into_iter())?;
        let kind = [ChangeKind::Added, ChangeKind::Modified][usize::from(known)];
        Ok(Change::opaque(path.clone(), kind, Value::Null))
    }

    fn diff(&self, from: Option<&Snapshot>, to: Option<&Snapshot>) -> Result<DiffView> {
        let (base, now) = load(&self.1)?;
        let (from, to) = (from.map(|one| parse(&one.0)), to.map(|one| parse(&one.0)));
        Ok(compare(&from.unwrap_or(Ok(base))?, &to.unwrap_or(Ok(now))?))
    }

    fn digests(&self, changes: &[Change]) -> Result<digest::VersionDigests> {
        let now = load(&self.1)?.1;
        let new = changes.iter().filter_map(|one| {
            let value = now.get(&one.path.to_string())?;
            Some((one.path.clone(), digest::VersionDigest::new(&[value], true)))
        });
        Ok(new.collect())
    }

    fn rollback(&self, _observer: &dyn Observer) -> Result<String> {
        let now = load(&self.0)?.1;
        save(&self.1, &(now.clone(), now)).map(|()| "discarded".to_owned())
    }

    fn checkpoint(&self, _: Option<&Snapshot>, _: &dyn Observer) -> Result<Snapshot> {
        Ok(Snapshot(json!(load(&self.1)?.1)))
    }

    fn retain(&self, keep: &[Snapshot]) -> Result<Vec<Snapshot>> {
        Ok(keep.to_vec())
    }

    fn preview(&self, _options: &PreviewOptions) -> Result<Preview> {
        let ((base, now), there) = (load(&self.1)?, load(&self.0)?.1);
        let mut moved = differing(&base, &now);
        moved.retain(|key| there.get(key) != base.get(key));
        Ok(Preview {
            conflicts: moved.into_iter().map(conflict).collect(),
            diff: compare(&base, &now).into(),
            ..Preview::default()
        })
    }

    fn prepare(&self, request: &PrepareRequest<'_>) -> Result<StagedCommit> {
        let (now, there) = (load(&self.1)?.1, load(&self.0)?.1);
        let released = request.preview.released(request.on_conflict);
        let keys = released.changes.iter().map(|one| one.path.to_string());
        let intent = swap(&self.0, keys.collect(), &there, &now);
        let digests = self.digests(&released.changes)?;
        Ok(StagedCommit { intent, digests })
    }

    fn prepare_restore(&self, request: &RestoreRequest<'_>) -> Result<Intent> {
        let (from, to): (Map, Map) = (parse(&request.from.0)?, parse(&request.to.0)?);
        Ok(swap(&self.1, differing(&from, &to), &from, &to))
    }

    fn access(&self) -> Result<Access> {
        Ok(Access::default())
    }
}
