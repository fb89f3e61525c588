//! What commands do not get to see: files that hold credentials, homes of other users, and what the
//! configuration hides.
//!
//! A path that is shown is not hidden, nor is what lies below it; a path that lies below a hidden one can be shown alone.
//! What holds a resource of the plan, or lies in one that is asked for by its own path, stays visible: it is what one works on.

use std::collections::HashSet;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::agents::RunCall;
use super::runs::text;
use super::{Manager, SandboxView};
use crate::config::{Injection, RunDefaults};
use crate::error::{Error, Result};
use crate::fs::{accounts, state_dir};
use crate::model::text::Location;
use crate::model::view::Layers;
use crate::model::{Network, ResourcePath};
use crate::run::search::{self, Search};
use crate::run::secrets;
use crate::run::{Covered, HiddenLink, NamespaceOptions, cleaned, hidden};

impl RunCall<'_> {
    /// The command as it is started: an agent that is a word of it does not ask, and makes no sandbox of its own, where it can
    /// make none.
    pub(super) fn started(&self, look: &NamespaceOptions, here: &str) -> Vec<Location> {
        let mut words: Vec<Location> = self.command.iter().map(text).collect();
        let agent = self.starts.as_ref().filter(|_| !look.userns);
        if let Some((agent, word)) = agent.and_then(|agent| Some((agent, agent.word?))) {
            let more = agent.preset.unasked(&self.command[word + 1..], here);
            let more = more
                .iter()
                .map(|word| Location::from_bytes(word.as_bytes()));
            words.splice(word + 1..word + 1, more);
        }
        words
    }
}

impl Manager {
    /// The home directories of this user: the one that is in use, and the one of the account.
    pub(super) fn own_homes(&self) -> Vec<PathBuf> {
        let account = accounts::home_dir(rustix::process::geteuid().as_raw());
        let all = self.options.user_home.iter().cloned().chain(account);
        let mut homes: Vec<PathBuf> = all
            .filter_map(|home| state_dir::canonical(&home).ok())
            .collect();
        // A root that is nobody's home holds everything.
        homes.retain(|home| home.parent().is_some());
        homes.dedup();
        homes
    }

    /// The usual places of the state of Escrow, where it is not the one in use: it holds sandboxes and logs of other plans.
    fn other_states(&self, homes: &[PathBuf]) -> Vec<Location> {
        let mut variables = self.options.environment.iter();
        let data = variables.find(|(name, _)| name == "XDG_DATA_HOME");
        let data = data.map(|(_, value)| Path::new(value).join("escrow"));
        let usual = homes.iter().map(|home| home.join(".local/share/escrow"));
        let own = state_dir::canonical(self.home()).ok();
        let all = usual.chain(data.filter(|data| data.is_absolute()));
        let all = all.filter_map(|home| state_dir::canonical(&home).ok());
        all.filter(|home| Some(home) != own.as_ref())
            .map(Location::from)
            .collect()
    }

    /// A path as people write it: `~` for the home directory that is in use.
    pub fn under_home(&self, path: &Location) -> String {
        let home = self.options.user_home.as_deref().map(state_dir::canonical);
        let home = home.and_then(|home| home.ok());
        let inner = home.and_then(|home| path.as_path().strip_prefix(home).ok());
        inner.map_or_else(
            || path.to_string(),
            |inner| format!("~/{}", Location::from(inner)),
        )
    }

    /// The paths that are hidden and shown, as the request and the configuration say: absolute, and without links where
    /// they are there.
    pub(super) fn wanted_paths(
        &self,
        request: &RunCall<'_>,
        usual: &RunDefaults,
    ) -> (Vec<Location>, Vec<Location>) {
        let home = self.options.user_home.as_deref().unwrap_or(Path::new("/"));
        let full = |path: &PathBuf| {
            let path = match path.strip_prefix("~") {
                Ok(rest) => home.join(rest),
                Err(_) => path.clone(),
            };
            Location::from(state_dir::canonical_any(&path).unwrap_or(path))
        };
        let held = usual.inject.iter().filter_map(Injection::file);
        let hide = usual.hide.iter().chain(&request.hide).chain(held);
        let hide = hide.map(full).collect();
        let mut show: Vec<Location> = usual.show.iter().chain(&request.show).map(full).collect();
        let paths = request.preset().and_then(|preset| self.agent_paths(preset));
        if let Some(paths) = paths {
            show.extend(paths.shown().into_iter().map(Location::from));
        }
        (hide, show)
    }

    /// What is covered in a namespace that looks like this.
    pub(super) fn covered(
        &self,
        views: &[SandboxView],
        look: &NamespaceOptions,
        used: &[PathBuf],
    ) -> Result<Covered> {
        let mut covered = Covered::default();
        let resources: Vec<&Path> = views
            .iter()
            .map(|view| view.resource.at.as_path())
            .collect();
        let homes = self.own_homes();
        let search = Search::new(&homes, &resources, &self.options.environment);
        let mut found = search.all();
        // Where one works, one sees.
        found.retain(|one| !resources.iter().any(|at| at.starts_with(one.at.as_path())));
        // Who works on the machine's configuration works on its accounts too, as packages do that bring a user.
        let etc = resources.contains(&Path::new("/etc"));
        found.retain(|one| !(etc && one.at.as_path().starts_with("/etc")));
        let mut programs = Vec::new();
        // What no list knows may be needed: it lies in a resource, holds what can be written, or is where programs are.
        found.retain(|one| {
            let at = one.at.as_path();
            let in_resource = resources.iter().any(|resource| at.starts_with(resource));
            let mut writable = look.writable.iter();
            let holds = writable.any(|path| path.as_path().starts_with(at));
            programs.extend(
                used.iter()
                    .filter(|path| one.unlisted && path.starts_with(at))
                    .cloned(),
            );
            !one.unlisted || !(in_resource || holds || used.iter().any(|path| path == at))
        });
        let dirs = found.iter();
        let dirs = dirs.filter_map(|one| Some((one.at.clone(), one.is_dir?)));
        covered.dirs = dirs.collect();
        let mut paths: Vec<Location> = found.into_iter().map(|one| one.at).collect();
        let states = self.other_states(&homes).into_iter();
        let holds = |path: &Location| resources.iter().any(|at| at.starts_with(path.as_path()));
        paths.extend(states.filter(|path| !holds(path)));
        // A name among files leads out of every network namespace. In layers, as in the home directory, it leads nowhere.
        if look.network != Network::Host {
            let writable = look.writable.iter().map(Location::as_path);
            let homes = homes.iter().map(PathBuf::as_path);
            let kept = resources.iter().copied().chain(homes).chain(writable);
            let kept: Vec<&Path> = kept.collect();
            let is_kept = |path: &Location| kept.iter().any(|at| path.as_path().starts_with(at));
            let sockets = search::sockets().into_iter();
            paths.extend(sockets.filter(|path| !is_kept(path)));
        }
        for path in &look.hidden {
            let forbidden = |why: &str| Error::Unhidable {
                at: path.clone(),
                why: why.to_owned(),
            };
            if resources.iter().any(|at| at.starts_with(path.as_path())) {
                return Err(forbidden("it holds a resource of the plan"));
            }
            if ["/", "/dev", "/proc", "/tmp"]
                .map(Path::new)
                .contains(&path.as_path())
            {
                return Err(forbidden("the namespace has its own"));
            }
            paths.push(path.clone());
        }
        let shown = |path: &Location| {
            let mut shown = look.shown.iter();
            shown.any(|one| path.as_path().starts_with(one.as_path()))
        };
        paths.retain(|path| !shown(path));
        let mut seen = HashSet::new();
        paths.retain(|path| seen.insert(path.clone()));
        let below = |path: &Location| {
            let mut hidden = paths.iter();
            search::is_there(path.as_path())
                && hidden.any(|one| path.as_path().starts_with(one.as_path()))
        };
        let programs = programs.into_iter().map(Location::from);
        let shown = look.shown.iter().cloned().chain(programs);
        covered.shown = shown.filter(below).collect();
        covered.paths = paths;
        // As `/tmp`, but where one works there, what lies beside is needed.
        let private = Path::new("/var/tmp");
        let homes_and_used = homes.iter().chain(used).map(PathBuf::as_path);
        let mut needed = resources.iter().copied().chain(homes_and_used);
        let needed = needed.any(|at| at.starts_with(private));
        if state_dir::canonical(private).is_ok_and(|real| real == private) && !needed {
            covered.private.push(Location::from(private));
        }
        let others = secrets::HOMES.iter().map(Path::new);
        for others in others.filter_map(|others| state_dir::canonical(others).ok()) {
            let others = others.as_path();
            let own = homes.iter().find(|home| home.starts_with(others));
            let visible = look.shown.iter().any(|path| path.as_path() == others);
            let elsewhere = |path: &&PathBuf| {
                let mut kept = resources.iter().copied();
                let kept = kept.any(|at| path.starts_with(at));
                !kept && !own.is_some_and(|own| path.starts_with(own))
            };
            let mut needed = used.iter().filter(elsewhere);
            let needed = needed.any(|path| path.starts_with(others));
            match own {
                _ if visible || needed || resources.contains(&others) => {}
                Some(own) if own == others => {}
                own => covered.homes.push((
                    Location::from(others),
                    own.map(|own| Location::from(own.as_path())),
                )),
            }
        }
        Ok(covered)
    }
}

/// Hides what lies in the home directory by links in a layer below the one that is written, where that can be: what is mounted
/// over it would show it again.
pub(super) fn link_in_home(
    covered: &mut Covered,
    (home, layers): (&Location, &Layers),
    (views, look): (&[SandboxView], &NamespaceOptions),
) -> Result<()> {
    let home = home.as_path();
    let mut paths = std::mem::take(&mut covered.paths);
    paths.sort();
    let mut links = Vec::<HiddenLink>::new();
    for path in paths {
        let at = path.as_path();
        let mut mounted = views
            .iter()
            .map(|view| &view.resource.at)
            .chain(&look.writable);
        let apart =
            mounted.all(|one| !at.starts_with(one.as_path()) && !one.as_path().starts_with(at));
        let whole = !covered
            .shown
            .iter()
            .any(|shown| shown.as_path().starts_with(at));
        let inner = at.strip_prefix(home).ok();
        let inner = inner.filter(|_| apart && whole);
        let place = inner.and_then(|inner| {
            let parsed = ResourcePath::parse(inner.as_os_str().as_bytes()).ok()?;
            let is_dir = covered.dirs.get(&path).copied();
            let is_dir = is_dir.or_else(|| search::is_dir(at))?;
            Some((parsed, hidden::place_of(inner)?, is_dir))
        });
        // Sorted, what lies in it comes behind what is hidden.
        if links.iter().any(|link| at.starts_with(link.path.as_path())) {
            continue;
        }
        match place {
            None => covered.paths.push(path),
            Some((inner, place, is_dir)) => links.push(HiddenLink {
                inner: Location::from_bytes(inner.as_bytes()),
                place: Location::from_bytes(&place),
                path,
                is_dir,
            }),
        }
    }
    let seen = |inner: &str| {
        let at = home.join(inner);
        let given =
            |path: &&Location| path.as_path().starts_with(&at) || at.starts_with(path.as_path());
        let mounted = views.iter().map(|view| &view.resource.at);
        let by_itself = look.shown.iter().chain(&look.writable).chain(mounted);
        let hides = links.iter().map(|link| &link.path).chain(&covered.paths);
        !by_itself.chain(hides).any(|path| given(&path))
    };
    covered.cleaned = cleaned::in_home(home, seen);
    if !links.is_empty() || !covered.cleaned.is_empty() {
        hidden::make_room(layers)?;
    }
    covered.links = links;
    Ok(())
}
