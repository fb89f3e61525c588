//! What the inside looks like, as a value that is handed to the process that builds it.

use serde::{Deserialize, Serialize};

use crate::model::text::Location;
use crate::model::view::{Layers, View};

/// Everything about the inside.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Spec {
    /// What appears where, parents before children.
    pub views: Vec<(Location, View)>,
    /// A layer over the home directory that is thrown away.
    pub scratch: Option<Layers>,
    /// Paths that can be written for real.
    pub writable: Vec<Location>,
    /// Directories of which nothing can be seen.
    pub hidden: Vec<Location>,
    /// Whether the network can be reached.
    pub network: bool,
    /// Where the command begins.
    pub directory: Location,
    /// The program and its arguments.
    pub command: Vec<Location>,
    /// Its environment.
    pub environment: Vec<(Location, Location)>,
    /// Whether it gets the terminal.
    pub terminal: bool,
    /// The namespace of this process is joined instead of making one.
    pub join: Option<u32>,
}
