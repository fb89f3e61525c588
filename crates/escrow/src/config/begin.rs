//! Writes a first configuration for a directory, from what is found there.

use std::path::Path;

use crate::fs::atomic_file::AtomicFile;
use crate::fs::state_dir;
use crate::fs::{self, Dir};
use crate::model::plan;
use crate::model::resource::{POSTGRES, SQLITE};
use crate::model::text::escape;
use crate::resource::{HandlerError, databases, detect, name_of_url};

/// What a configuration is called.
pub const FILE_NAME: &str = "escrow.yaml";

/// A configuration that is not written yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InitialConfig {
    /// Its text.
    pub text: String,
    /// The resources it names, the directory itself first.
    pub resources: Vec<InitialResource>,
    /// What was found and is not named, and why.
    pub left_out: Vec<(String, String)>,
    /// Something in it counts only once it is trusted.
    pub loosens: bool,
}

/// A resource of a configuration that is not written yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InitialResource {
    /// Its name.
    pub name: String,
    /// Its type.
    pub kind: &'static str,
    /// Where it is: a path from the directory of the configuration, or a URL.
    pub at: String,
    /// The resource it lies in.
    parent: Option<String>,
    /// The variable by which commands are told where it is.
    env: Option<String>,
}

impl InitialResource {
    fn text(&self) -> String {
        let key = match is_plain(&self.name) {
            true => self.name.clone(),
            false => format!("\"{}\"", self.name),
        };
        // A JSON text is one of YAML too.
        let at = match self.at.as_str() {
            "." => self.at.clone(),
            at => serde_json::Value::from(at).to_string(),
        };
        let mut text = format!("  {key}:\n    type: {}\n    at: {at}\n", self.kind);
        if let Some(parent) = &self.parent {
            text.push_str(&format!("    parent: \"{parent}\"\n"));
        }
        if let Some(env) = &self.env {
            text.push_str(&format!("    options: {{env: {env}}}\n"));
        }
        text
    }
}

/// A configuration for `directory`: with the directory itself, the SQLite databases that lie in it, and the PostgreSQL databases to
/// which its `.env`, or this `variable`, leads.
pub fn begin(
    directory: &Path,
    variable: Option<(String, String)>,
) -> Result<InitialConfig, HandlerError> {
    let directory = Dir::open(&state_dir::canonical(directory)?)?;
    let kind = detect(directory.path())?;
    let top = plan::name_from(directory.path().file_name().unwrap_or_default());
    let mut begun = InitialConfig {
        text: String::new(),
        resources: Vec::new(),
        left_out: Vec::new(),
        loosens: false,
    };
    begun.add(&top, kind, ".".to_owned());
    // What is set already counts, as for programs that read such a file.
    let mut all: Vec<(String, String)> = variable.into_iter().collect();
    let set = databases::variables(&directory).unwrap_or_else(|why| {
        begun.leave_out(".env", &why);
        Vec::new()
    });
    for (name, value) in set {
        if all.iter().all(|(known, _)| *known != name) {
            all.push((name, value));
        }
    }
    let found = databases::below(&directory)?;
    for path in &found.files {
        let Some(at) = path.to_str() else {
            let why = "its path is no text";
            begun.leave_out(&path.to_string_lossy(), why);
            continue;
        };
        let name = plan::name_from(path.file_name().unwrap_or_default());
        let env = all.iter().find(|(_, value)| {
            databases::sqlite_path(value, directory.path()) == Some(path.as_path())
        });
        let env = env.map(|(name, _)| name.clone());
        begun.loosens |= env.is_some();
        let one = begun.add(&name, SQLITE, at.to_owned());
        (one.parent, one.env) = (Some(top.clone()), env);
    }
    for path in &found.tracked {
        begun.leave_out(
            &path.to_string_lossy(),
            "git keeps versions of it: it stays a file",
        );
    }
    for path in &found.damaged {
        let why = "it is damaged: its size is not that of a database";
        begun.leave_out(&path.to_string_lossy(), why);
    }
    if found.cut {
        let why = "not everything in it was looked at: name further databases yourself";
        begun.leave_out(".", why);
    }
    for (name, value) in &all {
        match databases::postgres_url(value) {
            Some(Ok(url)) => {
                if let Some(known) = begun.resources.iter().find(|one| one.at == url) {
                    let first = known.env.as_deref().unwrap_or_default();
                    let why = format!(
                        "it leads to the same database as {first}: a command reaches the sandbox by that one alone"
                    );
                    begun.leave_out(name, &why);
                    continue;
                }
                begun.loosens = true;
                let called = name_of_url(&url).unwrap_or_else(|| "database".to_owned());
                let called = plan::name_from(called.as_ref());
                begun.add(&called, POSTGRES, url).env = Some(name.clone());
            }
            Some(Err(why)) => begun.leave_out(name, &why),
            None => {}
        }
    }
    let resources: String = begun.resources.iter().map(InitialResource::text).collect();
    begun.text = format!(
        "# What Escrow may work on here, and how. `escrow type validate {FILE_NAME}` checks it.\n\
         sandbox:\n  strategy: auto  # how sandboxes are made; `escrow doctor` says what works here\n\
         resources:\n{resources}"
    );
    Ok(begun)
}

impl InitialConfig {
    /// Adds a resource, under a name that no other has.
    fn add(&mut self, name: &str, kind: &'static str, at: String) -> &mut InitialResource {
        let taken = |name: &str| self.resources.iter().any(|one| one.name == name);
        let mut own = name.to_owned();
        for number in 2.. {
            if !taken(&own) {
                break;
            }
            own = format!("{name}-{number}");
        }
        self.resources.push(InitialResource {
            name: own,
            kind,
            at,
            parent: None,
            env: None,
        });
        self.resources.last_mut().expect("it was pushed")
    }

    fn leave_out(&mut self, what: &str, why: &str) {
        self.left_out
            .push((escape(what.as_bytes()), why.to_owned()));
    }
}

/// Writes the configuration of `directory`; whether it did, or something stands there already.
pub fn write_new(directory: &Path, text: &str, force: bool) -> fs::Result<bool> {
    let directory = Dir::open(&state_dir::canonical(directory)?)?;
    let name = FILE_NAME.as_bytes();
    let there = directory.stat(name)?.is_some();
    if there && !force {
        return Ok(false);
    }
    let draft = AtomicFile {
        stage: &directory,
        to: &directory,
        name,
        fresh: !there,
        synced: true,
    };
    draft.write(
        |file| std::io::Write::write_all(file, text.as_bytes()),
        |_| Ok(()),
    )?;
    Ok(true)
}

/// Whether YAML takes a name for a text without quotes.
fn is_plain(name: &str) -> bool {
    let word = ["true", "false", "null", "yes", "no", "on", "off", "y", "n"];
    let lower = name.to_ascii_lowercase();
    name.starts_with(|c: char| c.is_ascii_alphabetic()) && !word.contains(&lower.as_str())
}
