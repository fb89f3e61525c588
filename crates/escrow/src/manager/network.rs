//! The network of a run: which one a command gets, and what happens where a network of its own cannot be had.

use super::agents::RunCall;
use super::sessions::NamespaceEntry;
use super::{Manager, SandboxView};
use crate::error::{Error, Result};
use crate::model::network::host_of_url;
use crate::model::{Limits, Network};
use crate::run::{
    Attached, HandedSocket, Outgoing, OutgoingRules, Output, Proxy, Published, PublishedPort,
    RunError, RunOutcome, RunSpec,
};
use crate::store::Plan;

use std::os::fd::OwnedFd;

/// How a command is watched over.
#[derive(Clone, Copy)]
pub(super) struct Supervision<'a> {
    pub(super) output: Output,
    pub(super) limits: Limits,
    pub(super) published: Option<&'a Published>,
}

impl Supervision<'_> {
    pub(super) fn new(output: Output, limits: Limits) -> Self {
        Self {
            output,
            limits,
            published: None,
        }
    }
}

/// What serves the connections of one command.
#[derive(Default)]
pub(super) struct Servers {
    pub(super) proxy: Option<Proxy>,
    outgoing: Option<Outgoing>,
}

impl Servers {
    /// Takes a socket of the plan's network.
    pub(super) fn take(&mut self, spec: &RunSpec, what: &HandedSocket, socket: OwnedFd) {
        match (what, &self.outgoing) {
            (HandedSocket::Outgoing, _) => {
                let rules = OutgoingRules {
                    network: spec.look.network.clone(),
                    held: spec.held.clone(),
                };
                self.outgoing = Some(Outgoing::start(socket, &rules));
            }
            (HandedSocket::Relay(to, udp), Some(outgoing)) => outgoing.relay(socket, *to, *udp),
            // The channel comes first.
            (HandedSocket::Relay(..), None) => drop(socket),
        }
    }

    /// What was denied up to now.
    pub(super) fn denied(self) -> Vec<crate::model::DeniedConnection> {
        let mut all = self.proxy.map(|one| one.denied()).unwrap_or_default();
        all.extend(self.outgoing.map(|one| one.denied()).unwrap_or_default());
        all
    }
}

/// The addresses of the databases that a plan holds on servers.
pub(super) fn held_databases(views: &[SandboxView]) -> Vec<(String, u16)> {
    let isolated = views.iter();
    let urls = isolated.map(|view| String::from_utf8_lossy(view.resource.at.as_bytes()));
    urls.filter_map(|url| host_of_url(&url)).collect()
}

impl Manager {
    /// Listens for the ports that are to be shown on this machine.
    pub(super) fn publish(&self, ports: &[PublishedPort], network: &Network) -> Result<Published> {
        if !ports.is_empty() && *network == Network::Host {
            return Err(Error::NotPublished {
                port: ports[0].inside,
                why: "the command has the network of this machine, so its ports are there already"
                    .to_owned(),
            });
        }
        Published::open(ports).map_err(|(port, error)| Error::NotPublished {
            port,
            why: error.to_string(),
        })
    }

    /// Carries out a run. A network of its own that nobody chose is done without where it cannot be made, and that is said.
    pub(super) fn supervise_in_network(
        &self,
        plan: &Plan,
        spec: &mut RunSpec,
        attached: Attached,
        how: Supervision<'_>,
        entry: &NamespaceEntry,
        (request, mut started): (&RunCall<'_>, impl FnMut()),
    ) -> Result<RunOutcome> {
        let chosen = request.network.is_some()
            || !request.publish.is_empty()
            || entry.there.is_some()
            || self.run_defaults(plan)?.network.is_some();
        let ended = self.supervise(spec, attached, how, entry, (plan, true), &mut started);
        match ended {
            Err(Error::Run(RunError::NoNetwork { step, errno })) if !chosen => {
                let why = std::io::Error::from(errno);
                self.notice(format!(
                    "the command has the network of this machine, its loopback included: a network of its own cannot be made here \
                     ({step}: {why}); `--network host` says so without trying"
                ));
                spec.look.network = Network::Host;
                let attached = self.attach()?;
                self.supervise(spec, attached, how, entry, (plan, true), started)
            }
            ended => ended,
        }
    }
}
