//! Resources: adds, finds and removes them, and refuses locations that must not be touched.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::path::{Component, Path, PathBuf};
use std::sync::atomic::Ordering;

use super::Manager;
use super::audit::OperationSubject;
use crate::config::ConfigResource;
use crate::error::{Error, Result};
use crate::fs::state_dir;
use crate::model::resource::{POSTGRES, is_url};
use crate::model::text::{Location, escape};
use crate::model::{Action, ResourceId, ResourcePath, ResourceType, Scope, Shape, plan};
use crate::resource::{INHERIT, ResourceGraph, accept, detect, name_of_url, shape};
use crate::store::{Plan, Resource, StoreError};
use crate::strategy::registry::AUTO;

/// A resource to be added.
pub struct NewResource<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its type; that of what stands there if none.
    pub kind: Option<&'a str>,
    /// Where it is.
    pub at: &'a Path,
    /// The resource it lies in.
    pub parent: Option<&'a str>,
    /// The strategy it asks for; the default one if none.
    pub strategy: Option<&'a str>,
    /// Take what is refused otherwise for its size.
    pub allow_root: bool,
}

pub(super) fn check_name(name: &str) -> Result<()> {
    match plan::is_name(name) {
        true => Ok(()),
        false => Err(Error::InvalidName {
            name: escape(name.as_bytes()),
        }),
    }
}

impl Manager {
    /// The type of this name, if this version can work with it.
    pub(super) fn kind(&self, name: &str) -> Result<&ResourceType> {
        let types = &self.settings().types;
        let kind = types.named(name).ok_or_else(|| Error::UnknownType {
            name: escape(name.as_bytes()),
            known: types.names(),
        })?;
        match kind.supported {
            true => Ok(kind),
            false => Err(Error::UnsupportedType {
                name: kind.name.clone(),
            }),
        }
    }

    /// The type of this name, or if none is named that of what stands at the path, and where that is.
    pub(super) fn kind_at(
        &self,
        named: Option<&str>,
        at: &Path,
        allow_root: bool,
    ) -> Result<(&ResourceType, Location)> {
        let named = named.map(|name| self.kind(name)).transpose()?;
        let elsewhere = |kind: &&ResourceType| shape(kind).is_some_and(|shape| !shape.has_path());
        if let Some(kind) = named.filter(elsewhere) {
            return Ok((kind, Location::from(at)));
        }
        if named.is_none() && is_url(at.as_os_str()) {
            return Ok((self.kind(POSTGRES)?, Location::from(at)));
        }
        let at = self.take_location(at, allow_root)?;
        let kind = match named {
            Some(kind) => kind,
            None => self.kind(detect(at.as_path())?)?,
        };
        Ok((kind, at))
    }

    /// Every resource, oldest first.
    pub fn resources(&self) -> Result<Vec<Resource>> {
        Ok(self.store.resources()?)
    }

    /// Those that have a name of their own or are used by an open plan, oldest first.
    pub fn resources_in_use(&self) -> Result<Vec<Resource>> {
        let open = self.views(self.open_plans()?)?;
        let views = open.iter().flat_map(|plan| &plan.sandboxes);
        let used: HashSet<ResourceId> = views.map(|view| view.resource.id).collect();
        let mut all = self.store.resources()?;
        all.retain(|one| one.named || used.contains(&one.id));
        Ok(all)
    }

    /// The resource of this name.
    pub fn resource(&self, name: &str) -> Result<Resource> {
        let resources = self.store.resources()?;
        let known = resources
            .iter()
            .map(|resource| resource.name.clone())
            .collect();
        let found = resources.into_iter().find(|resource| resource.name == name);
        found.ok_or_else(|| Error::UnknownResource {
            name: escape(name.as_bytes()),
            known,
        })
    }

    /// Adds a resource.
    pub fn add_resource(&self, new: &NewResource<'_>) -> Result<Resource> {
        check_name(new.name)?;
        let scope = Scope::Resource(new.name.to_owned());
        self.permit(Action::Admin, None, scope)?;
        self.recover_dead()?;
        let added = self.add(new, true)?;
        self.changed.store(true, Ordering::Relaxed);
        Ok(added)
    }

    pub(super) fn add(&self, new: &NewResource<'_>, named: bool) -> Result<Resource> {
        check_name(new.name)?;
        let (kind, at) = self.kind_at(new.kind, new.at, new.allow_root)?;
        let strategy = new.strategy.unwrap_or(AUTO);
        if strategy != INHERIT {
            self.registry().check(strategy, kind)?;
        }
        if let Some(parent) = new.parent {
            self.resource(parent)?;
        }
        accept(kind, at.as_path())?;
        let resource = Resource {
            id: ResourceId::new(&*self.options.origin),
            name: new.name.to_owned(),
            kind: kind.name.clone(),
            at,
            parent: new.parent.map(str::to_owned),
            strategy: strategy.to_owned(),
            created_at: self.options.origin.now(),
            named,
            shape: shape(kind).unwrap_or(Shape::Opaque),
        };
        self.check_place(&resource)?;
        let about = || OperationSubject::resource("resource add", new.name);
        let operation = self.operation(about())?;
        let failed = match self.store.add_resource(&resource, &operation) {
            Ok(()) => return Ok(resource),
            Err(StoreError::Exists) => self.taken(&resource)?,
            Err(error) => error.into(),
        };
        self.record_about(about(), |_| Err(failed))
    }

    /// Refuses a resource that would be changed through another one (rule C8), and one that shares
    /// a sandbox it does not lie in.
    fn check_place(&self, resource: &Resource) -> Result<()> {
        let resources = self.store.resources()?;
        let graph = ResourceGraph::new(&resources);
        if resource.strategy == INHERIT {
            let parent = resource.parent.clone().unwrap_or_default();
            let bad = |why: &str| Error::BadParent {
                name: resource.name.clone(),
                parent,
                why: why.to_owned(),
            };
            let Some(boundary) = graph.boundary(resource) else {
                return Err(bad(
                    "to inherit a sandbox a resource needs a parent that has one",
                ));
            };
            if graph.path_in(resource, &boundary)?.is_none() {
                return Err(bad("it does not lie in it, so it cannot share its sandbox"));
            }
        }
        // What the user did not name belongs to the plan that uses it, and is compared there. What is known
        // already is reported as such.
        let named =
            |one: &&Resource| one.named && one.name != resource.name && one.at != resource.at;
        let others: Vec<&Resource> = resources.iter().filter(named).collect();
        match graph.overlap(resource, &others)?.filter(|_| resource.named) {
            Some(other) => Err(overlap(resource, other)),
            None => Ok(()),
        }
    }

    /// Refuses resources of a new plan that overlap each other.
    pub(super) fn check_apart(&self, resources: &[&Resource]) -> Result<()> {
        let known = self.store.resources()?;
        let graph = ResourceGraph::new(&known);
        for (position, resource) in resources.iter().enumerate() {
            if let Some(other) = graph.overlap(resource, &resources[..position])? {
                return Err(overlap(resource, other));
            }
        }
        Ok(())
    }

    /// Refuses a resource that overlaps another one of the same plan.
    pub(super) fn check_overlap(&self, plan: &Plan, resource: &Resource) -> Result<()> {
        let views = self.live_sandboxes(plan)?;
        let others: Vec<&Resource> = views.iter().map(|view| &view.resource).collect();
        let resources = self.store.resources()?;
        let graph = ResourceGraph::new(&resources);
        if let Some(other) = graph.overlap(resource, &others)? {
            return Err(overlap(resource, other));
        }
        // A sandbox that was made before the resource was known holds it as its own.
        for view in &views {
            let later = resource.created_at > view.sandbox.created_at;
            if later && graph.path_in(resource, &view.resource)?.is_some() {
                return Err(Error::BadParent {
                    name: resource.name.clone(),
                    parent: view.resource.name.clone(),
                    why: "its sandbox in this plan was made before; begin another plan".to_owned(),
                });
            }
        }
        Ok(())
    }

    /// The resource in whose sandbox a resource lives, and where in it its paths begin.
    pub(super) fn boundary(&self, resource: &Resource) -> Result<(Resource, ResourcePath)> {
        if resource.strategy != INHERIT {
            return Ok((resource.clone(), ResourcePath::root()));
        }
        let resources = self.store.resources()?;
        let graph = ResourceGraph::new(&resources);
        let boundary = graph.boundary(resource);
        let path = match &boundary {
            Some(boundary) => graph.root_in(resource, boundary)?,
            None => None,
        };
        boundary.zip(path).ok_or_else(|| Error::BadParent {
            name: resource.name.clone(),
            parent: resource.parent.clone().unwrap_or_default(),
            why: "it is gone, or does not hold it any more".to_owned(),
        })
    }

    fn taken(&self, wanted: &Resource) -> Result<Error> {
        let resources = self.store.resources()?;
        let other = resources
            .into_iter()
            .find(|other| other.name == wanted.name || other.at == wanted.at);
        Ok(match other {
            Some(other) => Error::ResourceExists {
                name: other.name,
                at: other.at,
            },
            None => StoreError::Exists.into(),
        })
    }

    /// Forgets a resource that no open plan uses. The real thing stays as it is.
    pub fn remove_resource(&self, name: &str) -> Result<Resource> {
        let resource = self.resource(name)?;
        let scope = Scope::Resource(resource.name.clone());
        self.permit(Action::Admin, None, scope)?;
        self.recover_dead()?;
        self.record_about(OperationSubject::resource("resource remove", name), |_| {
            if self.store.forget_resource(resource.id, false)? {
                return Ok(());
            }
            let plans = self.open_plans()?;
            for plan in plans {
                let uses = |view: &super::SandboxView| view.resource.id == resource.id;
                if self.live_sandboxes(&plan)?.iter().any(uses) {
                    return Err(Error::ResourceInUse {
                        name: resource.name.clone(),
                        plan: plan.name,
                    });
                }
            }
            // Another process was quicker.
            Ok(())
        })?;
        Ok(resource)
    }

    /// The resource that a person means: by its name, else by its path.
    pub fn find_resource(&self, typed: &OsStr, directory: &Path) -> Result<Resource> {
        let resources = self.store.resources()?;
        let named = |resource: &&Resource| typed == resource.name.as_str();
        let path = match is_url(typed) {
            true => Some(PathBuf::from(typed)),
            false => state_dir::known_as(&directory.join(typed)),
        };
        let located = |resource: &&Resource| path.as_deref() == Some(resource.at.as_path());
        let found = resources
            .iter()
            .find(named)
            .or_else(|| resources.iter().find(located));
        match found {
            Some(resource) => Ok(resource.clone()),
            None => Err(Error::UnknownResource {
                name: escape(typed.as_encoded_bytes()),
                known: self.known_names(&resources),
            }),
        }
    }

    /// The same; what the configuration names becomes a resource, and so does a directory or a file that
    /// is none yet, named after it. Its type is that of what stands there.
    pub fn take_resource(&self, typed: &OsStr, directory: &Path) -> Result<Resource> {
        if let Some(declared) = self.declared(typed, directory) {
            check_named(declared, typed)?;
            return self.declare_all(declared);
        }
        let path = directory.join(typed);
        if is_url(typed) {
            return match self.find_resource(typed, directory) {
                Err(Error::UnknownResource { .. }) => {
                    self.take_at(&Location::from(Path::new(typed)))
                }
                found => found,
            };
        }
        if let Some(known) = state_dir::known_as(&path) {
            self.warn_unnamed(&known);
        }
        match self.find_resource(typed, directory) {
            Err(error @ Error::UnknownResource { .. }) => {
                // What has a slash can only be a path, so say what is wrong with the path.
                let is_path = typed.is_empty() || typed.as_encoded_bytes().contains(&b'/');
                if !is_path && state_dir::canonical_or_file(&path).is_err() {
                    return Err(error);
                }
            }
            answer => return answer,
        }
        let path = if typed.is_empty() {
            PathBuf::new()
        } else {
            path
        };
        self.take_at(&self.take_location(&path, false)?)
    }

    /// The resource at a location, which becomes one, named after it.
    pub(super) fn take_at(&self, at: &Location) -> Result<Resource> {
        loop {
            let resources = self.store.resources()?;
            // Another process may have been quicker with the directory, or with the name.
            if let Some(known) = resources.iter().find(|resource| resource.at == *at) {
                return Ok(known.clone());
            }
            // No process takes the name of a resource that is only declared, and its permissions with it.
            let taken = self.known_names(&resources);
            let name = free_name(&named_after(at), |name| {
                taken.iter().any(|other| other == name)
            });
            let new = NewResource {
                name: &name,
                kind: None,
                at: at.as_path(),
                parent: None,
                strategy: None,
                allow_root: false,
            };
            let scope = Scope::Resource(name.clone());
            self.permit(Action::Create, None, scope)?;
            match self.add(&new, false) {
                Err(Error::ResourceExists { .. }) => {}
                answer => return answer,
            }
        }
    }

    /// The one path of what may be a resource, all links resolved. Too large a target is refused: no process
    /// means the whole machine or a whole home by it.
    pub(super) fn take_location(&self, typed: &Path, allow_root: bool) -> Result<Location> {
        let refuse = |why: &str| {
            Err(Error::Forbidden {
                at: Location::from(typed),
                why: why.to_owned(),
            })
        };
        if typed.as_os_str().is_empty() {
            return refuse("the path is empty");
        }
        if typed.components().next_back() == Some(Component::ParentDir) {
            return refuse(
                "a path that ends in '..' is too easily another one than meant; name the directory",
            );
        }
        let at = state_dir::canonical_or_file(typed)?;
        if at == Path::new("/") && !allow_root {
            return refuse("it is the whole machine");
        }
        let user_home = self.options.user_home.as_deref();
        if let Some(home) = user_home.and_then(|home| state_dir::canonical(home).ok()) {
            if home == at && !allow_root {
                return refuse("it is your whole home directory");
            }
            if home.starts_with(&at) && !allow_root {
                return refuse("your home directory is in it");
            }
        }
        if self.home().starts_with(&at) && !allow_root {
            return refuse("Escrow's own state is in it");
        }
        if at.starts_with(self.home()) {
            return refuse("it is part of Escrow's own state");
        }
        Ok(Location::from(at))
    }
}

/// Refuses a resource by its name, where the file that gives the name is not trusted with it: who asks
/// for it by that name expects what the file says. By its path it is sandboxed as any directory is.
fn check_named(declared: &ConfigResource, typed: &OsStr) -> Result<()> {
    let Some(untrusted) = declared.untrusted.as_ref() else {
        return Ok(());
    };
    match &untrusted.ignored {
        Some(key) if typed == declared.name.as_str() => Err(Error::Untrusted {
            file: declared.file.clone(),
            key: key.clone(),
            why: "it counts only in a file that you trust".to_owned(),
        }),
        _ => Ok(()),
    }
}

fn overlap(resource: &Resource, other: &Resource) -> Error {
    Error::Overlap {
        at: resource.at.clone(),
        other: other.name.clone(),
        other_at: other.at.clone(),
    }
}

/// By what a location is called: of a URL its database.
fn named_after(at: &Location) -> Location {
    let url = at
        .as_path()
        .to_str()
        .filter(|_| is_url(at.as_path().as_os_str()));
    match url {
        Some(url) => Location::from(Path::new(
            &name_of_url(url).unwrap_or_else(|| POSTGRES.to_owned()),
        )),
        None => at.clone(),
    }
}

/// A free name made from the last part of a location.
pub(super) fn free_name(at: &Location, taken: impl Fn(&str) -> bool) -> String {
    let name = plan::name_from(at.as_path().file_name().unwrap_or_default());
    if !taken(&name) {
        return name;
    }
    let mut number = 2;
    loop {
        let numbered = format!("{name}-{number}");
        if !taken(&numbered) {
            return numbered;
        }
        number += 1;
    }
}
