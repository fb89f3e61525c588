//! What a command works on that names no plan: the open plan of its directory, else the project around it.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use super::Manager;
use super::plans::only;
use crate::config::ConfigResource;
use crate::error::{Error, Result};
use crate::fs::state_dir;
use crate::model::resource::is_url;
use crate::resource::{project_root, shape};
use crate::store::Plan;

/// What a new plan is made of where nothing else was asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Project {
    /// Its top directory.
    pub root: PathBuf,
    /// Its resources, by name or path: those of its configuration, else the directory.
    pub resources: Vec<OsString>,
}

impl Manager {
    /// The open plan in which a command goes on that is run in `directory` and names none, if there is one; several are an
    /// error. A plan in which something is not isolated is used only by its name.
    pub fn open_plan_here(&self, directory: &Path) -> Result<Option<Plan>> {
        let mut isolated = Vec::new();
        for plan in self.nearest_open_plans(directory)? {
            if self.isolates(&plan)? {
                isolated.push(plan);
            }
        }
        only(directory, isolated)
    }

    /// Whether no sandbox of a plan works on its original.
    fn isolates(&self, plan: &Plan) -> Result<bool> {
        for view in self.live_sandboxes(plan)? {
            let reference = &view.sandbox.reference;
            let strategy = self.registry_for(reference)?.of(reference)?;
            if !strategy.capabilities().isolates {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// The project that `directory` lies in. With `all`, every resource that was added by name belongs to it too.
    pub fn project(&self, directory: &Path, all: bool) -> Result<Project> {
        let directory = state_dir::canonical(directory)?;
        let home = self.options.user_home.as_deref();
        let home = home.and_then(|home| state_dir::canonical(home).ok());
        let root = project_root(&directory, home.as_deref());
        let mut names = self.declared_around(&directory)?;
        if all {
            let added = self.store.resources()?.into_iter();
            let added = added.filter(|one| one.named && !names.contains(&one.name));
            let added: Vec<String> = added.map(|one| one.name).collect();
            names.extend(added);
        }
        let mut resources: Vec<OsString> = match names.is_empty() {
            true => vec![root.clone().into()],
            false => names.into_iter().map(OsString::from).collect(),
        };
        for path in &self.settings().run.keep {
            let in_home = path.strip_prefix("~").ok().zip(home.as_ref());
            let full = in_home.map_or_else(|| path.clone(), |(rest, home)| home.join(rest));
            resources.push(full.into());
        }
        Ok(Project { root, resources })
    }

    /// The names of the resources that the project's configuration declares, if it lies in `directory` or above it.
    /// What a file that is not trusted may not declare is named, and left out; a database on a server is an error, since a command would
    /// reach the real one.
    fn declared_around(&self, directory: &Path) -> Result<Vec<String>> {
        let settings = self.settings();
        let file = settings.file.as_ref().map(|file| file.as_path());
        let top = file.and_then(Path::parent).and_then(state_dir::known_as);
        let Some(top) = top.filter(|top| directory.starts_with(top)) else {
            return Ok(Vec::new());
        };
        let mut names = Vec::new();
        let own = |one: &&ConfigResource| settings.file.as_ref() == Some(&one.file);
        for one in settings.resources.iter().filter(own) {
            let at = state_dir::known_as(&one.at);
            let leaves = at.is_none_or(|at| !at.starts_with(&top));
            if one.untrusted.is_some() && self.is_elsewhere(one) {
                return Err(Error::Untrusted {
                    file: one.file.clone(),
                    key: format!("resources.{}", one.name),
                    why: "the file is not trusted; a command would reach the real one, so none was begun"
                        .to_owned(),
                });
            }
            match one.untrusted.is_some() && (leaves || one.is_unnamed() || one.is_nameless()) {
                true => self.notice(format!(
                    "the resource '{}' of the configuration is left out: `escrow trust` permits it",
                    one.name
                )),
                false => names.push(one.name.clone()),
            }
        }
        Ok(names)
    }

    /// Whether a resource is no file or directory of this machine.
    fn is_elsewhere(&self, one: &ConfigResource) -> bool {
        let kind = one.kind.as_deref().and_then(|name| self.kind(name).ok());
        let without_path = kind.and_then(shape).is_some_and(|shape| !shape.has_path());
        without_path || is_url(one.at.as_os_str())
    }
}
