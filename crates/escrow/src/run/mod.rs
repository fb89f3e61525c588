//! Runs a command inside a plan's sandboxes: it sees its files at their usual paths, and changes nothing real.
//!
//! ```text
//! escrow run ── supervisor: the terminal, signals, exit status
//!   └─ launcher: joins the namespaces of the plan, waits for the monitor
//!        ├─ monitor: starts the command, ends whatever it leaves
//!        │    └─ the command: no capability, nothing but descriptors 0 to 2
//!        ├─ mover: looks at renames, sizes of terminals and connections before they are carried out; not seen inside
//!        └─ reaper, if no command was inside yet: makes namespaces and mounts, holds the lock `live`
//!             └─ process 1: nothing but its place
//! ```
//!
//! Each sandbox appears at the path of its original; everything else is read-only; the home directory
//! gets a layer that is thrown away, `/tmp` and `/dev` are private, `/run` and the state are hidden.
//!
//! Every command is alike: the process that comes first has the namespace made, and then joins it as the others
//! do. Each holds a share of the lock `inside`, by its supervisor, launcher and monitor. The reaper waits
//! for all of that lock; once it has it, it kills process 1, and the kernel ends the rest. The lock
//! `live` is free only when nothing is left. A supervisor that dies is noticed by its monitor through
//! the channel between them. No mount ever exists outside.
//!
//! | file | promise |
//! |---|---|
//! | `spec` | what the namespace looks like, as a value |
//! | `launcher` | the way in, and the reaper; fails before the command begins, with the step that failed |
//! | `idmap` | which ids the user namespace of an ordinary user knows |
//! | `mounts` | what is seen inside |
//! | `stand_ins` | what stands for something that programs would not take as it is |
//! | `monitor` | starts the command, passes signals on, leaves nothing of it running |
//! | `supervise` | the outside: terminal, job control, exit status |
//! | `console` | terminal, standard input and signals, as the caller shares them |
//! | `streams` | files on the standard streams are copied through pipes |
//! | `landlock` | a second wall: nothing is written but where the mounts let it be |
//! | `limits` | memory, processes and processors of a command are limited |
//! | `disk` | what a command takes on disk is limited |
//! | `secrets` | which files hold credentials, by name |
//! | `home_entries` | what of a home directory is shown, by name |
//! | `cleaned` | start files of shells and git's configuration, without lines that hold a secret |
//! | `search` | what of this machine is hidden therefore |
//! | `hidden` | something empty stands in the place of what is hidden, and says whether a command looked there |
//! | `looks` | which variables look like secrets, by name and by value |
//! | `own_network` | a network of the plan's own, which leads to a gateway without a way on |
//! | `connects` | connections out of it wait for the supervisor, on the command's side |
//! | `outgoing` | the supervisor decides by address, connects from here, and passes bytes on |
//! | `relay` | bytes and datagrams between two sockets |
//! | `published` | ports of the plan that are shown on this machine |
//! | `proxy` | where the network is a list of hosts, those are reached and no other |
//! | `inject` | credentials that the command never holds are added to its requests |
//! | `tls` | the name that a TLS client asks for |
//! | `filter` | the system calls that commands are refused |
//! | `renames` | directories of the original can be renamed in an overlay |
//! | `terminal_size` | the size of the user's terminal is the user's |
//! | `notify` | how the kernel asks about a call |
//! | `ask` | questions from inside, answered by the helper program |
//! | `program` | other programs are started here, and have a time limit |
//! | `copied` | a command in a copy, where no namespaces can be had |
//! | `unconfined` | a command in the directory of a sandbox, where nothing confines it |
//! | `pause` | every process inside is paused while a snapshot is kept or restored |
//! | `walls` | which of all this the machine has, and why not |
//! | `sys` | the system calls that have no safe form |

mod ask;
pub(crate) mod cleaned;
mod connects;
mod console;
mod copied;
mod disk;
mod filter;
pub(crate) mod hidden;
pub(crate) mod home_entries;
pub mod idmap;
mod inject;
mod landlock;
mod launcher;
pub(crate) mod limits;
mod listening;
pub(crate) mod looks;
mod monitor;
mod mounts;
mod notify;
mod outgoing;
mod own_network;
mod pause;
pub(crate) mod program;
mod proxy;
mod published;
mod relay;
mod renames;
pub(crate) mod search;
pub(crate) mod secrets;
pub mod spec;
mod stand_ins;
mod streams;
mod supervise;
mod sys;
mod terminal_size;
mod tls;
mod unconfined;
mod walls;

pub(crate) use ask::Helper;
pub use ask::{AGENT, Answer, Question, ask};
pub use console::{Attached, Console, Detached, Output};
pub use copied::runs_in_copy;
pub(crate) use copied::{lacks, not_protected};
pub(crate) use disk::DiskWatch;
pub(crate) use inject::{InjectedHeader, Injector, SYSTEM, read_named};
pub use launcher::{enter, probe};
pub(crate) use outgoing::{Outgoing, OutgoingRules};
pub use pause::{PausedProcesses, pause};
pub(crate) use program::{output, program};
pub(crate) use proxy::Proxy;
pub(crate) use published::Published;
pub use published::PublishedPort;
pub use spec::{BuildLocks, Covered, HiddenLink, MountedSandbox, NamespaceOptions, RunSpec};
pub(crate) use streams::connect;
use supervise::at;
pub use supervise::{CommandExit, RunError};
pub(crate) use supervise::{HandedSocket, SupervisorOptions, at_io, supervise};
pub(crate) use unconfined::unconfined;
pub use walls::{Wall, fix, walls};

use serde::{Deserialize, Serialize};

use crate::agents::AgentReport;
use crate::fs::process::ProcessIdentity;
use crate::model::text::Location;
use crate::model::{CheckpointId, DeniedConnection};

/// How a command ended, and what it did not reach.
#[must_use = "a command that failed is no error of the run"]
#[derive(Debug, Clone)]
pub struct RunOutcome {
    /// How it ended.
    pub exit: CommandExit,
    /// Hosts that it tried to reach although its network does not have them.
    pub denied: Vec<DeniedConnection>,
    /// Variables of the caller that it did not get.
    pub not_passed: Vec<String>,
    /// Hidden places of the home directory that it looked for.
    pub hidden: Vec<Location>,
    /// The checkpoint that holds the plan as it was before, where one was taken.
    pub before: Option<CheckpointId>,
    /// What came of the coding agents that ran in the plan.
    pub agents: Vec<AgentReport>,
    /// Where no namespaces could be had: how it ran without, as [`Console::begins`] was told.
    pub without: Option<String>,
}

/// What those inside tell the supervisor.
#[derive(Debug, Serialize, Deserialize)]
enum Event {
    /// The namespaces are there, and this is their process 1.
    Built(u32),
    /// The namespace is ready, and this is its process 1.
    Ready(ProcessIdentity),
    /// Something could not be had, and was done without.
    Notice(String),
    /// A socket inside, whose other end comes with this.
    Listening,
    /// The socket of the proxy, which comes with this.
    Proxy,
    /// The channel on which connections out of the plan's network are asked for, which comes with this.
    Outgoing,
    /// A socket of the plan's loopback that leads to this machine's at the same address, and whether it takes datagrams.
    Relay(std::net::SocketAddr, bool),
    /// A socket inside that was asked for.
    Socket,
    /// A network of the plan's own could not be made: at which step, and why.
    NoNetwork(String, i32),
    /// The command is over a limit, and is ended.
    Limit(String),
    /// It looked for these, which are hidden.
    Hidden(Vec<Location>),
    /// The command runs.
    Started,
    /// It was stopped by this signal.
    Stopped(i32),
    /// It ended with this status.
    Exited(i32),
    /// It was ended by this signal.
    Signaled(i32),
    /// It could not be started: at which step, and why.
    Failed(String, i32),
}

/// What the supervisor asks of those inside.
#[derive(Debug, Serialize, Deserialize)]
enum Request {
    /// Everything outside is ready: go on.
    Go,
    /// Let the command go on, and give it the terminal if it is to stand in front.
    Continue { front: bool },
    /// Pass this signal to the command.
    Signal(i32),
    /// Open a socket in the plan's network.
    Socket { v6: bool },
}
