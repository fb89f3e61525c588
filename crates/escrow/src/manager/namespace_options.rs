//! How the namespace of a run looks: as it was asked for, else as the configuration says; and where one is there already, as that.

use std::path::{Path, PathBuf};

use super::agents::{AgentChoice, RunCall};
use super::{Manager, SandboxView};
use crate::config::RunDefaults;
use crate::error::{Error, Result};
use crate::fs::state_dir;
use crate::model::Network;
use crate::model::text::Location;
use crate::run::NamespaceOptions;
use crate::store::Plan;

impl Manager {
    /// How the namespace looks: as it was asked for, unless it is there already.
    pub(super) fn namespace_options(
        &self,
        plan: &Plan,
        views: &[SandboxView],
        request: &RunCall<'_>,
        there: Option<&NamespaceOptions>,
    ) -> Result<NamespaceOptions> {
        let usual = &match there {
            None => self.run_defaults(plan)?,
            Some(_) => RunDefaults::default(),
        };
        let configured = request.writable.is_empty() && request.writable_anyway.is_empty();
        let wanted = match configured && there.is_none() {
            true => &usual.writable,
            false => &request.writable,
        };
        let anyway = request.writable_anyway.iter();
        let anyway: Vec<PathBuf> = anyway
            .map(|path| state_dir::canonical_any(path))
            .collect::<std::result::Result<_, _>>()?;
        let executing = match wanted.is_empty() {
            true => Vec::new(),
            false => self.executing_paths(&self.agents_of(plan)?),
        };
        let mut writable = Vec::new();
        for path in wanted.iter().chain(&request.writable_anyway) {
            let links = state_dir::ways_to(path);
            let path = Location::from(state_dir::canonical_any(path)?);
            let forbidden = |why: &str| Error::Unwritable {
                at: path.clone(),
                why: why.to_owned(),
            };
            // What was trusted is the name; in the tree another process decides where that leads.
            let links = links.split_last().map_or(&[][..], |(_, links)| links);
            let in_tree = |link: &PathBuf| {
                let mut trees = views.iter().map(|view| view.resource.at.as_path());
                trees.any(|tree| link.starts_with(tree))
            };
            if configured && links.iter().any(in_tree) {
                return Err(forbidden(
                    "the configuration names a symbolic link in a resource, whose target can be changed",
                ));
            }
            if views.iter().any(|view| view.resource.at == path) {
                return Err(forbidden("it is a resource of the plan"));
            }
            // Who could replace what holds the state could replace the state.
            let holds =
                |own: &Path| own.starts_with(path.as_path()) || path.as_path().starts_with(own);
            let state = state_dir::canonical(self.home());
            if state.is_ok_and(|home| holds(&home)) {
                return Err(forbidden("the state of Escrow lies there"));
            }
            let areas = self.store.sandboxes(None)?;
            if areas.iter().any(|one| holds(one.area.as_path())) {
                return Err(forbidden("sandboxes lie there"));
            }
            if ["/", "/dev", "/proc"]
                .map(Path::new)
                .contains(&path.as_path())
            {
                return Err(forbidden("the namespace has its own"));
            }
            let at = path.as_path();
            let mut executing = executing.iter();
            let executes = executing.find(|(own, _)| own.starts_with(at) || at.starts_with(own));
            if let Some((own, what)) = executes.filter(|_| !anyway.iter().any(|one| one == at)) {
                return Err(Error::WritableExecutes {
                    own: Location::from(own.as_path()),
                    what: what.clone(),
                    at: path,
                });
            }
            if !writable.contains(&path) {
                writable.push(path);
            }
        }
        let other = |what: &str| {
            Err(Error::OtherOptions {
                plan: plan.name.clone(),
                what: what.to_owned(),
            })
        };
        let (hidden, shown) = self.wanted_paths(request, usual);
        match there {
            None => Ok(NamespaceOptions {
                scratch: request.scratch.or(usual.scratch).unwrap_or(true),
                writable,
                network: request
                    .network
                    .clone()
                    .or_else(|| usual.network.clone())
                    .unwrap_or_else(Network::own),
                userns: request.userns.or(usual.userns).unwrap_or(false),
                hidden,
                shown,
                open: false,
            }),
            Some(look) if look.open => other("nothing confines it (`escrow open`, `escrow mount`)"),
            Some(look) if request.scratch == Some(!look.scratch) => match look.scratch {
                true => other("its home directory can be written"),
                false => other("its home directory cannot be written"),
            },
            Some(look)
                if request
                    .network
                    .as_ref()
                    .is_some_and(|one| *one != look.network) =>
            {
                other(&format!("its network is {}", look.network))
            }
            Some(look) if request.userns == Some(true) && !look.userns => {
                other("it allows no user namespaces")
            }
            Some(look) if hidden.iter().any(|path| !look.hidden.contains(path)) => {
                other("fewer paths are hidden there")
            }
            Some(look) if request.agent == AgentChoice::None && self.shows_agent(plan, look)? => {
                other("credentials of an agent are shown there")
            }
            // An agent that was not named joins with what is shown.
            Some(look)
                if (!request.show.is_empty() || matches!(request.agent, AgentChoice::Named(_)))
                    && shown.iter().any(|path| !look.shown.contains(path)) =>
            {
                other("fewer paths are shown there")
            }
            Some(look) if writable.iter().any(|path| !look.writable.contains(path)) => {
                other("fewer paths can be written there")
            }
            Some(look) => Ok(look.clone()),
        }
    }

    /// Whether a namespace shows what belongs to one of the known agents.
    fn shows_agent(&self, plan: &Plan, look: &NamespaceOptions) -> Result<bool> {
        let agents = self.agents_of(plan)?;
        let paths = agents.all().filter_map(|preset| self.agent_paths(preset));
        let mut shown = paths.flat_map(|paths| paths.shown());
        Ok(shown.any(|at| look.shown.iter().any(|one| one.as_path() == at)))
    }
}
