//! Resources from the configuration: registered when they are first used, and updated while no plan uses them.
//!
//! They are kept as those that the user did not name: they go with the last plan that uses them, and a
//! change of the configuration counts at once.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use super::{Manager, NewResource};
use crate::config::ConfigResource;
use crate::error::{Error, Result};
use crate::fs::state_dir;
use crate::model::resource::{POSTGRES, is_url};
use crate::model::text::Location;
use crate::model::{PlanId, ResourceId, Shape};
use crate::resource::{detect, shape, shapes_at};
use crate::store::Resource;
use crate::strategy::registry::AUTO;

impl Manager {
    /// The names of resources that can be typed: the known ones, and those of the configuration.
    pub(super) fn known_names(&self, resources: &[Resource]) -> Vec<String> {
        let known = resources.iter().map(|one| &one.name);
        let mut names: Vec<String> = known.cloned().collect();
        // A name that does not count is free for what has it by its path.
        let declared = self.settings().resources.iter();
        let declared = declared.filter(|one| !one.is_unnamed());
        let fresh = declared.filter(|one| resources.iter().all(|known| known.name != one.name));
        names.extend(fresh.map(|one| one.name.clone()));
        names
    }

    /// The resource of the configuration that a person means: by its name, else by its path.
    pub(super) fn declared(&self, typed: &OsStr, directory: &Path) -> Option<&ConfigResource> {
        let all = &self.settings().resources;
        let named = all.iter().find(|one| typed == one.name.as_str());
        if named.is_some() || all.is_empty() || typed.is_empty() {
            return named;
        }
        if is_url(typed) {
            let mut named = all.iter().filter(|one| !one.is_unnamed());
            return named.find(|one| one.at.as_os_str() == typed);
        }
        let path = state_dir::known_as(&directory.join(typed))?;
        let here =
            |one: &&ConfigResource| state_dir::known_as(&one.at).is_some_and(|at| at == path);
        all.iter().filter(|one| !one.is_unnamed()).find(here)
    }

    /// Says that a name of the configuration does not count for what stands at a path.
    pub(super) fn warn_unnamed(&self, path: &Path) {
        let general = &self.configured.general;
        let unnamed = general.settings.resources.iter();
        for one in unnamed.filter(|one| one.is_unnamed()) {
            if state_dir::known_as(&one.at).is_some_and(|at| at == path) {
                let own = format!("resources.{}", one.name);
                self.warn_ignored(general, |key| key == own);
            }
        }
    }

    /// The type of a resource of the configuration; `None` if it names none and nothing that has one is there.
    pub fn type_of<'a>(&self, declared: &'a ConfigResource) -> Option<&'a str> {
        let stands = || match is_url(declared.at.as_os_str()) {
            true => Some(POSTGRES),
            false => detect(&state_dir::known_as(&declared.at)?).ok(),
        };
        declared.kind.as_deref().or_else(stands)
    }

    /// Every resource that has a name: the known ones, and those of the configuration, whether they were
    /// ever used or not. Rules speak of both alike.
    pub(super) fn named_resources(&self, plan: Option<PlanId>) -> Result<Vec<Resource>> {
        let mut all = self.store.resources()?;
        let effective = self.effective(plan)?;
        let declared = effective.settings.resources.iter();
        // A name that its file may not give permits nothing, and so is none.
        for declared in declared.filter(|one| !one.is_nameless()) {
            // A process that changes a link on the way to it decides what it is.
            let places = match is_url(declared.at.as_os_str()) {
                true => vec![declared.at.clone()],
                false => state_dir::ways_to(&declared.at),
            };
            let shapes = self.shapes_of(declared, places.last());
            for at in places.into_iter().rev() {
                let at = Location::from(at);
                let known = |one: &Resource| one.name == declared.name && one.at == at;
                if all.iter().any(known) {
                    continue;
                }
                all.extend(shapes.iter().map(|shape| Resource {
                    id: ResourceId::new(&*self.options.origin),
                    name: declared.name.clone(),
                    kind: declared.kind.clone().unwrap_or_default(),
                    at: at.clone(),
                    parent: declared.parent.clone(),
                    strategy: AUTO.to_owned(),
                    created_at: self.options.origin.now(),
                    named: false,
                    shape: *shape,
                }));
            }
        }
        Ok(all)
    }

    /// What a resource of the configuration is by its type, or by what stands there; where neither says,
    /// it may be either.
    fn shapes_of(&self, declared: &ConfigResource, at: Option<&PathBuf>) -> Vec<Shape> {
        let kind = declared.kind.as_deref();
        let kind = kind.and_then(|name| self.settings().types.named(name));
        match kind.and_then(shape) {
            Some(shape) => vec![shape],
            None if is_url(declared.at.as_os_str()) => vec![Shape::Url],
            None => shapes_at(at.map(PathBuf::as_path)).to_vec(),
        }
    }

    /// Makes a resource of the configuration known, after those it lies in and with those that
    /// lie in it: who shares a sandbox, and what is carved out of it, follows from all of them.
    pub(super) fn declare_all(&self, wanted: &ConfigResource) -> Result<Resource> {
        let settings = self.settings();
        let mut above = Vec::new();
        let mut next = wanted.parent.as_deref();
        while let Some(parent) = next.and_then(|name| settings.resource(name)) {
            above.push(parent);
            next = parent.parent.as_deref();
        }
        for one in above.into_iter().rev() {
            self.declare(one)?;
        }
        let resource = self.declare(wanted)?;
        self.declare_below(wanted)?;
        Ok(resource)
    }

    fn declare_below(&self, parent: &ConfigResource) -> Result<()> {
        let inside = |one: &&ConfigResource| one.parent.as_deref() == Some(parent.name.as_str());
        let all = &self.settings().resources;
        for one in all.iter().filter(inside) {
            match self.declare(one) {
                Ok(_) => self.declare_below(one)?,
                // What is not there, or cannot be sandboxed, is not carved out either.
                Err(Error::UnsupportedType { .. } | Error::Untrusted { .. }) => {}
                Err(Error::Fs(error)) if error.is_absent() => {}
                Err(error) => return Err(error),
            }
        }
        // What the configuration does not say any more.
        for stale in self.store.resources()? {
            let gone = stale.parent.as_deref() == Some(parent.name.as_str())
                && all.iter().all(|one| one.name != stale.name);
            if gone {
                self.store.forget_resource(stale.id, true)?;
            }
        }
        Ok(())
    }

    fn declare(&self, declared: &ConfigResource) -> Result<Resource> {
        let (kind, at) = self.kind_at(declared.kind.as_deref(), &declared.at, false)?;
        check_within(declared, &at)?;
        let strategy = declared.strategy.as_deref().unwrap_or(AUTO);
        let same = |one: &Resource| {
            one.name == declared.name
                && one.at == at
                // Where none is named, the one it was taken with stays.
                && (declared.kind.is_none() || one.kind == kind.name)
                && one.parent == declared.parent
                && one.strategy == strategy
        };
        let known = self.store.resources()?;
        if let Some(known) = known.iter().find(|one| same(one)) {
            return Ok(known.clone());
        }
        let taken = |one: &&Resource| one.name == declared.name || one.at == at;
        for other in known.iter().filter(taken) {
            if !self.store.forget_resource(other.id, true)? {
                return Err(Error::Contradicted {
                    name: declared.name.clone(),
                    at: at.clone(),
                    other: other.name.clone(),
                    what: describe(other),
                });
            }
        }
        let new = NewResource {
            name: &declared.name,
            kind: Some(&kind.name),
            at: at.as_path(),
            parent: declared.parent.as_deref(),
            strategy: declared.strategy.as_deref(),
            allow_root: false,
        };
        match self.add(&new, false) {
            // Another process declared the same meanwhile.
            Err(Error::ResourceExists { .. }) => {
                let found = self.store.resources()?.into_iter().find(|one| same(one));
                found.ok_or_else(|| Error::ResourceExists {
                    name: declared.name.clone(),
                    at,
                })
            }
            answer => answer,
        }
    }
}

/// Refuses a resource of a file that is not trusted, where it lies outside of the file's directory or
/// may not have its name.
fn check_within(declared: &ConfigResource, at: &Location) -> Result<()> {
    match &declared.untrusted {
        Some(untrusted) if untrusted.unnamed => Err(Error::Untrusted {
            file: declared.file.clone(),
            key: format!("resources.{}", declared.name),
            why: "a policy has rules for resources by name".to_owned(),
        }),
        Some(untrusted) if !at.as_path().starts_with(&untrusted.within) => Err(Error::Untrusted {
            file: declared.file.clone(),
            key: format!("resources.{}.at", declared.name),
            why: "it leads out of the directory of the file".to_owned(),
        }),
        _ => Ok(()),
    }
}

fn describe(resource: &Resource) -> String {
    let parent = resource.parent.as_deref();
    let parent = parent.map_or_else(String::new, |parent| format!(" in '{parent}'"));
    format!(
        "a resource '{}' of type {} with the strategy {}{parent} at '{}'",
        resource.name, resource.kind, resource.strategy, resource.at
    )
}
