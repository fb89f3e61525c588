//! What the inside looks like, as a value that is handed to the process that builds it.

use serde::{Deserialize, Serialize};

use crate::fs::process::Owner;
use crate::model::text::Location;
use crate::model::view::{Layers, View};

/// The directory inside where those who are there reach their supervisors.
pub const SOCKETS: &str = "/dev/escrow";

/// What every command in one inside shares; the first one decides it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Look {
    /// Whether the home directory has a layer that is thrown away.
    pub scratch: bool,
    /// Paths that can be written for real.
    pub writable: Vec<Location>,
    /// Whether the network can be reached.
    pub network: bool,
}

/// Descriptors of the locks that whoever builds an inside holds.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct Build {
    /// Held for as long as the inside is there.
    pub live: i32,
    /// Every command has a share of it; who gets all of it knows that the last one is gone.
    pub last: i32,
}

/// A sandbox as it appears inside.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Shown {
    /// Where: at the path of its original.
    pub at: Location,
    /// What.
    pub view: View,
    /// The area of the sandbox; `None` where it is the original itself, or a layer that is thrown away.
    pub area: Option<Location>,
    /// Whether what the command writes is thrown away.
    pub throw_away: bool,
}

/// Everything about the inside, and about the command.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Spec {
    /// What appears where.
    pub views: Vec<Shown>,
    /// The home directory, and a layer over it that is thrown away.
    pub scratch: Option<(Location, Layers)>,
    /// Directories of which nothing can be seen.
    pub hidden: Vec<Location>,
    /// What was chosen.
    pub look: Look,
    /// Where the command begins.
    pub directory: Location,
    /// The program and its arguments.
    pub command: Vec<Location>,
    /// Its environment.
    pub environment: Vec<(Location, Location)>,
    /// Where it finds its supervisor.
    pub socket: Location,
    /// How many files it may have open, if not as many as its supervisor.
    pub files: Option<u64>,
    /// Whether there is a terminal.
    pub terminal: bool,
    /// Whether the command gets the terminal at once.
    pub front: bool,
    /// Process 1 of the inside to join.
    pub inside: Option<Owner>,
    /// If there is none yet: what its warden holds.
    pub build: Option<Build>,
    /// The descriptor of this command's share.
    pub share: i32,
}
