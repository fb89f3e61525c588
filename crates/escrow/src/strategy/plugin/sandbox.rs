//! A session with a sandbox of a program. It holds nothing but the reference: every call says which sandbox is meant.

use std::io::{Cursor, Read, Write};
use std::sync::Arc;

use serde::Deserialize;
use serde_json::{Value, json};

use super::super::error::{Result, StrategyError};
use super::super::{
    Access, Checkpoints, Intent, Mount, PrepareRequest, Preview, PreviewOptions, RestoreRequest,
    Sandbox, Snapshot, StagedCommit, unsupported,
};
use super::error::PluginFault;
use super::program::Program;
use super::wire::{self, WireChange, WireRemark};
use super::{StoredIntent, ask, base64, tell};
use crate::event::{Observer, Unobserved};
use crate::fs::Dir;
use crate::model::digest::{VersionDigest, VersionDigests};
use crate::model::text::{Location, escape};
use crate::model::view::View;
use crate::model::{
    Change, ChangeKind, Conflict, DiffView, ResourcePath, SandboxId, SandboxRef, SystemIdSource,
};

/// Contents up to this size travel in a message, larger ones in a file.
const INLINE: u64 = 256 * 1024;

pub(super) struct PluginSandbox {
    program: Arc<Program>,
    sandbox: SandboxRef,
    reference: Value,
    area: Option<Location>,
    /// The path of the original, if it has one.
    at: Option<Location>,
}

/// Bytes: in the message, or in a file of the program's directory.
#[derive(Deserialize)]
#[serde(untagged)]
enum Content {
    Inline { base64: String },
    File { file: String },
}

#[derive(Deserialize)]
struct ReadAnswer {
    content: Content,
}

#[derive(Deserialize)]
struct DiffAnswer {
    changes: Vec<WireChange>,
}

#[derive(Deserialize)]
struct PreviewAnswer {
    changes: Vec<WireChange>,
    #[serde(default)]
    conflicts: Vec<WireRemark>,
    #[serde(default)]
    notes: Vec<WireRemark>,
    #[serde(default)]
    bytes: u64,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct MessageAnswer {
    message: Option<String>,
}

#[derive(Deserialize)]
struct CheckpointAnswer {
    checkpoint_id: Value,
}

#[derive(Deserialize)]
struct PrepareAnswer {
    #[serde(default)]
    intent: Value,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct AccessAnswer {
    path: Option<Location>,
    url: Option<String>,
    env: std::collections::BTreeMap<String, String>,
}

fn view(changes: Vec<WireChange>) -> DiffView {
    DiffView::new(changes.into_iter().map(Change::from).collect())
}

impl PluginSandbox {
    pub(super) fn open(program: Arc<Program>, sandbox: &SandboxRef) -> Result<Self> {
        let (reference, stored) = wire::reference(sandbox)?;
        Ok(Self {
            program,
            sandbox: sandbox.clone(),
            reference,
            area: stored.area,
            at: stored.at,
        })
    }

    fn has(&self, method: &str) -> bool {
        self.program.known().is_some_and(|known| known.has(method))
    }

    /// The reference and the area, with more keys.
    fn params(&self, more: Value) -> Value {
        let mut params = json!({"ref": self.reference, "area": self.area});
        if let (Some(params), Value::Object(more)) = (params.as_object_mut(), more) {
            params.extend(more);
        }
        params
    }

    fn scratch(&self) -> Result<Dir> {
        let scratch = self.program.scratch();
        scratch.map_err(|error| StrategyError::Plugin(Box::new(error)))
    }

    fn broken(&self, verb: &str, what: &str) -> StrategyError {
        let fault = PluginFault::Protocol(what.to_owned());
        StrategyError::Plugin(Box::new(self.program.error(verb, fault, Vec::new())))
    }

    /// What changes become, for which each is read.
    fn digest(&self, change: &Change) -> Result<VersionDigest> {
        let mut hash = blake3::Hasher::new();
        match self.read(&change.path) {
            Ok(mut content) => {
                let mut buffer = vec![0; 64 * 1024];
                loop {
                    let length = content.read(&mut buffer).map_err(|source| {
                        let path = change.path.clone();
                        StrategyError::Input { path, source }
                    })?;
                    if length == 0 {
                        break;
                    }
                    hash.update(&buffer[..length]);
                }
            }
            // A directory, or another thing without content.
            Err(StrategyError::NotAFile { .. } | StrategyError::NotThere { .. }) => {}
            Err(error) => return Err(error),
        }
        let new = json!(change.new).to_string();
        let content = hash.finalize();
        Ok(VersionDigest::new(
            &[new.as_bytes(), content.as_bytes()],
            true,
        ))
    }
}

impl Sandbox for PluginSandbox {
    fn read(&self, path: &ResourcePath) -> Result<Box<dyn Read + Send>> {
        let params = self.params(json!({"path": path}));
        let answer: ReadAnswer = ask(&self.program, "read", Some(path), &params, &Unobserved)?;
        match answer.content {
            Content::Inline { base64 } => match base64::decode(&base64) {
                Some(bytes) => Ok(Box::new(Cursor::new(bytes))),
                None => Err(self.broken("read", "the content is not base64")),
            },
            Content::File { file } => {
                if file.is_empty() || file.contains('/') || file.starts_with('.') {
                    return Err(self.broken("read", "the content is in no file of its directory"));
                }
                let scratch = self.scratch()?;
                let (content, _) = scratch.file(file.as_bytes())?;
                scratch.unlink(file.as_bytes())?;
                Ok(Box::new(content))
            }
        }
    }

    fn write(&self, path: &ResourcePath, content: &mut dyn Read) -> Result<Change> {
        let failed = |source| StrategyError::Input {
            path: path.clone(),
            source,
        };
        let mut bytes = Vec::new();
        let head = content.take(INLINE + 1).read_to_end(&mut bytes);
        head.map_err(failed)?;
        let ask = |content: Value| -> Result<Change> {
            let params = self.params(json!({"path": path, "content": content}));
            let written: WireChange =
                ask(&self.program, "write", Some(path), &params, &Unobserved)?;
            Ok(Change::from(written))
        };
        if bytes.len() as u64 <= INLINE {
            return ask(json!({"base64": base64::encode(&bytes)}));
        }
        let scratch = self.scratch()?;
        let name = format!("write-{}", SandboxId::new(&SystemIdSource));
        let mut file = scratch.create(name.as_bytes(), 0o600)?;
        let kept = (|| {
            let full = |error| scratch.io_error("write", name.as_bytes(), &error);
            file.write_all(&bytes).map_err(full)?;
            let mut buffer = vec![0; 64 * 1024];
            loop {
                let length = content.read(&mut buffer).map_err(failed)?;
                if length == 0 {
                    return Ok(());
                }
                file.write_all(&buffer[..length]).map_err(full)?;
            }
        })();
        let written = kept.and_then(|()| ask(json!({"file": name})));
        // A program may have moved it to its place.
        match scratch.unlink(name.as_bytes()) {
            Err(error) if !error.is_absent() => Err(error.into()),
            _ => written,
        }
    }

    fn diff(&self, from: Option<&Snapshot>, to: Option<&Snapshot>) -> Result<DiffView> {
        let params = self.params(json!({"from_checkpoint": from, "to_checkpoint": to}));
        let answer: DiffAnswer = ask(&self.program, "diff", None, &params, &Unobserved)?;
        Ok(view(answer.changes))
    }

    fn digests(&self, changes: &[Change]) -> Result<VersionDigests> {
        let kept = |change: &&Change| change.kind != ChangeKind::Deleted;
        let digest = |change: &Change| Ok((change.path.clone(), self.digest(change)?));
        changes.iter().filter(kept).map(digest).collect()
    }

    fn rollback(&self, observer: &dyn Observer) -> Result<String> {
        let params = self.params(json!({}));
        let answer: Option<MessageAnswer> =
            ask(&self.program, "rollback", None, &params, observer)?;
        let message = answer.and_then(|answer| answer.message);
        Ok(message.map_or_else(|| "discarded".to_owned(), |one| escape(one.as_bytes())))
    }

    fn checkpoint(&self, parent: Option<&Snapshot>, observer: &dyn Observer) -> Result<Snapshot> {
        let known = self.program.known();
        if known.is_none_or(|known| known.capabilities.checkpoints == Checkpoints::None) {
            let why = "its program keeps none";
            return Err(unsupported(
                &self.program.spec.name,
                "take a checkpoint",
                why,
            ));
        }
        let params = self.params(json!({"parent": parent}));
        let answer: CheckpointAnswer = ask(&self.program, "checkpoint", None, &params, observer)?;
        Ok(Snapshot(answer.checkpoint_id))
    }

    fn retain(&self, keep: &[Snapshot]) -> Result<Vec<Snapshot>> {
        if self.has("retain") {
            let params = self.params(json!({"keep": keep}));
            tell(&self.program, "retain", &params, &Unobserved)?;
        }
        Ok(keep.to_vec())
    }

    fn preview(&self, options: &PreviewOptions) -> Result<Preview> {
        if !self.has("preview") {
            return Ok(Preview {
                diff: self.diff(None, None)?.into(),
                ..Preview::default()
            });
        }
        let params = self.params(json!({"strict": options.strict}));
        let answer: PreviewAnswer = ask(&self.program, "preview", None, &params, &Unobserved)?;
        Ok(Preview {
            diff: view(answer.changes).into(),
            conflicts: answer.conflicts.into_iter().map(Conflict::from).collect(),
            notes: answer.notes.into_iter().map(Into::into).collect(),
            bytes: answer.bytes,
            ..Preview::default()
        })
    }

    fn prepare(&self, request: &PrepareRequest<'_>) -> Result<StagedCommit> {
        let released = request.preview.released(request.on_conflict);
        let commit_id = SandboxId::new(&SystemIdSource).to_string();
        let area = request.area.map(Location::from);
        let mut intent = Value::Null;
        if self.has("prepare") {
            let listed = released.changes.iter();
            let changes: Vec<Value> = listed
                .map(|one| json!({"path": one.path, "kind": one.kind}))
                .collect();
            let params = self.params(json!({
                "commit_id": commit_id, "changes": changes, "on_conflict": request.on_conflict,
                "message": request.message, "commit_area": area, "keeps": request.keeps,
            }));
            let answer: PrepareAnswer =
                ask(&self.program, "prepare", None, &params, request.observer)?;
            intent = answer.intent;
        }
        let digests = match request.digests && self.has("prepare") {
            true => self.digests(&released.changes)?,
            false => Vec::new(),
        };
        let stored = StoredIntent::Commit {
            sandbox: self.sandbox.clone(),
            commit_id,
            message: request.message.map(str::to_owned),
            intent,
            area,
        };
        let intent = Intent(json!(stored));
        Ok(StagedCommit { intent, digests })
    }

    fn prepare_restore(&self, request: &RestoreRequest<'_>) -> Result<Intent> {
        let stored = StoredIntent::Restore {
            sandbox: self.sandbox.clone(),
            from: request.from.clone(),
            to: request.to.clone(),
        };
        Ok(Intent(json!(stored)))
    }

    fn access(&self) -> Result<Access> {
        if !self.has("access") {
            return Ok(Access::default());
        }
        let params = self.params(json!({}));
        let answer: AccessAnswer = ask(&self.program, "access", None, &params, &Unobserved)?;
        // While a command runs inside, it appears at the path of the original.
        let mount = answer
            .path
            .clone()
            .zip(self.at.clone())
            .map(|(path, at)| Mount {
                at,
                view: View::Directory(path),
                area: self.area.clone(),
            });
        Ok(Access {
            mounts: mount.into_iter().collect(),
            env: answer.env,
            cwd: answer.path,
            url: answer.url,
        })
    }
}
