//! The description of a namespace and its command, passed to the process that builds it.

use std::collections::HashMap;
use std::sync::Arc;

use rustix::thread::CapabilitySet;
use serde::{Deserialize, Serialize};

use super::inject::Injector;
use crate::fs::process::ProcessIdentity;
use crate::model::text::Location;
use crate::model::view::{Layers, View};
use crate::model::{Limits, Network};

/// The directory inside where those who are there reach their supervisors.
pub const SOCKETS: &str = "/dev/escrow";

/// What every command in one inside shares; the first one decides it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct NamespaceOptions {
    /// Whether the home directory has a layer that is thrown away.
    pub scratch: bool,
    /// Paths that can be written for real.
    pub writable: Vec<Location>,
    /// Which hosts can be reached.
    pub network: Network,
    /// Whether commands may make user namespaces of their own, and mounts in them.
    pub userns: bool,
    /// Paths of which nothing can be seen, beside those that hold credentials.
    pub hidden: Vec<Location>,
    /// Paths that can be seen although they hold credentials.
    pub shown: Vec<Location>,
    /// Whether nothing confines the command, as the user's own editor: the sandboxes are at places of their own, and all
    /// else is as outside.
    pub open: bool,
}

/// Something of the home directory that is hidden by a link in the layer over it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct HiddenLink {
    /// What is hidden.
    pub path: Location,
    /// The same path within the home directory.
    pub inner: Location,
    /// The name of what stands for it among those of all.
    pub place: Location,
    /// Whether it is a directory: then there is an empty one.
    pub is_dir: bool,
}

/// What is covered, so that commands do not see it.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Covered {
    /// Files and directories: something empty takes their place.
    pub paths: Vec<Location>,
    /// The same in the home directory, where the layer over it has links.
    pub links: Vec<HiddenLink>,
    /// Which of the paths are directories, where that is known.
    #[serde(skip)]
    pub dirs: HashMap<Location, bool>,
    /// Files of the home directory, by their paths in it, and what of them can be seen.
    pub cleaned: Vec<(Location, String)>,
    /// Paths below these that can be seen all the same.
    pub shown: Vec<Location>,
    /// Directories in whose place are private, empty ones that can be written.
    pub private: Vec<Location>,
    /// Directories of home directories, and the one in each that can be seen.
    pub homes: Vec<(Location, Option<Location>)>,
}

/// Descriptors of the locks that the process that builds a namespace holds.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct BuildLocks {
    /// Held for as long as the namespace is there.
    pub live: i32,
    /// Every command has a share of it; who gets all of it knows that the last one is gone.
    pub last: i32,
}

/// A sandbox as it appears inside.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct MountedSandbox {
    /// Where: at the path of its original.
    pub at: Location,
    /// What.
    pub view: View,
    /// The area of the sandbox; `None` where it is the original itself, or a layer that is thrown away.
    pub area: Option<Location>,
    /// Whether what the command writes is thrown away.
    pub throw_away: bool,
}

/// The cache of a tool.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct CacheLayer {
    /// Where: at the path of the real one.
    pub at: Location,
    /// What.
    pub layers: Layers,
    /// The descriptor of its lock, held for as long as the namespace is there.
    pub lock: i32,
}

/// A path that shows another one, as it is: nothing is layered.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct BoundPath {
    /// Where.
    pub at: Location,
    /// The same path within the home directory.
    pub inner: Location,
    /// What.
    pub from: Location,
    /// Whether it is a directory.
    pub is_dir: bool,
}

/// The home of a coding agent.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct AgentMounts {
    /// Its directories, and its credentials.
    pub state: Vec<BoundPath>,
    /// The directory of its single files.
    pub files: Location,
    /// Where that appears.
    pub place: Location,
    /// Links to these in the home directory: where each is, and where it leads.
    pub links: Vec<(Location, Location)>,
    /// Files of the home directory that have another content inside.
    pub given: Vec<(Location, String)>,
    /// The descriptor of its lock, held for as long as the namespace is there.
    pub lock: i32,
}

/// A command in copies, where no namespaces can be had.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct CopiedRun {
    /// The directory of its `HOME` and `TMPDIR`.
    pub private: Location,
    /// What its `HOME` has of the real one: names, and where each leads.
    pub tools: Vec<(Location, Location)>,
    /// Private files of its `HOME`, and their contents.
    pub given: Vec<(Location, String)>,
    /// What of an agent it can read; nothing once that is known.
    pub shown: Vec<Location>,
    /// What stands in the copies for what a namespace would mount there.
    pub links: Vec<LinkInCopy>,
    /// What it can write.
    pub writable: Vec<Location>,
    /// What it can read.
    pub readable: Vec<Location>,
    /// What it cannot read, although it lies there.
    pub hidden: Vec<Location>,
}

/// A link in a copy to another directory of the sandbox.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct LinkInCopy {
    /// The copy.
    pub copy: Location,
    /// Where in it, relative.
    pub place: Location,
    /// Where it leads.
    pub target: Location,
    /// The path that this has in the original.
    pub at: Location,
}

/// Everything about the namespace, and about the command.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct RunSpec {
    /// What appears where.
    pub views: Vec<MountedSandbox>,
    /// The home directory, and a layer over it that is thrown away.
    pub scratch: Option<(Location, Layers)>,
    /// Caches of tools in it, with layers that stay.
    pub caches: Vec<CacheLayer>,
    /// The home of the agent that the command starts.
    pub agent: Option<AgentMounts>,
    /// The home directory, for those who join too.
    pub home: Option<Location>,
    /// Directories of which nothing can be seen.
    pub hidden: Vec<Location>,
    /// What is covered by something empty.
    pub covered: Covered,
    /// What was chosen.
    pub look: NamespaceOptions,
    /// Where the command begins.
    pub directory: Location,
    /// The program and its arguments.
    pub command: Vec<Location>,
    /// Its environment.
    pub environment: Vec<(Location, Location)>,
    /// Databases that the plan holds on servers, each a host and its port: their addresses are not reached.
    pub held: Vec<(String, u16)>,
    /// Where it finds its supervisor.
    pub socket: Location,
    /// How many files it may have open, if not as many as its supervisor.
    pub files: Option<u64>,
    /// Whether there is a terminal.
    pub terminal: bool,
    /// Whether the command gets the terminal at once.
    pub front: bool,
    /// Process 1 of the namespace to join.
    pub inside: Option<ProcessIdentity>,
    /// If there is none yet: what its reaper holds.
    pub build: Option<BuildLocks>,
    /// The descriptor of this command's share.
    pub share: i32,
    /// Descriptors by which the command joins its control groups.
    pub groups: Vec<i32>,
    /// Bytes of the largest file that it may write, and of each directory in memory.
    pub disk: Option<u64>,
    /// Limits that the monitor keeps, since no control group does.
    pub supervised: Limits,
    /// The certificate (PEM) that the command trusts beside those of the machine.
    pub authority: Option<String>,
    /// What adds credentials, outside.
    #[serde(skip)]
    pub(crate) injector: Option<Arc<Injector>>,
    /// If there are no namespaces: how the command runs without.
    pub copied: Option<CopiedRun>,
    /// Whether the command is root, in a user namespace with every id: it is what root is in a container. Known inside.
    pub is_root: bool,
}

impl Covered {
    /// The paths of all that is hidden by something in its place.
    pub(super) fn all(&self) -> Vec<Location> {
        let links = self.links.iter().map(|link| &link.path);
        self.paths.iter().chain(links).cloned().collect()
    }
}

impl RunSpec {
    /// What the command may do in its user namespace. An ordinary user's may do nothing.
    pub(super) fn capabilities(&self) -> CapabilitySet {
        if self.copied.is_some() {
            // Landlock confines what root writes, as in a container with the files of another user, but not modes and owners.
            let now = rustix::thread::capabilities(None).map(|sets| sets.permitted);
            let now = now.unwrap_or(CapabilitySet::empty());
            return now & CapabilitySet::DAC_OVERRIDE;
        }
        match self.is_root {
            true => {
                CapabilitySet::CHOWN
                    | CapabilitySet::DAC_OVERRIDE
                    | CapabilitySet::FOWNER
                    | CapabilitySet::FSETID
                    | CapabilitySet::KILL
                    | CapabilitySet::SETGID
                    | CapabilitySet::SETUID
                    | CapabilitySet::SETPCAP
                    | CapabilitySet::SETFCAP
            }
            false => CapabilitySet::empty(),
        }
    }
}
