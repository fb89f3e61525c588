//! A command inside a plan's sandboxes: it sees its files at their usual paths, and changes nothing
//! real.
//!
//! ```text
//! escrow run ── supervisor: the terminal, signals, exit status; holds the plan's `live` lock
//!   └─ escrow inside ── door: new namespaces, every mount, then waits
//!        └─ escrow inside ── init: process 1 of the new pid namespace; ends with the command
//!             └─ the command: no capability, nothing but descriptors 0 to 2
//! ```
//!
//! Each sandbox appears at the path of its original; everything else is read-only; the home directory
//! gets a layer that is thrown away, `/tmp` and `/dev` are private, `/run` and the state are hidden.
//! Whoever dies takes the rest with it: the kernel ends the namespace with its process 1, which ends
//! with its parent, and no mount ever existed outside.
//!
//! | file | promise |
//! |---|---|
//! | `spec` | what the inside looks like, as a value |
//! | `door` | the namespaces and mounts; fails before the command begins, with the step that failed |
//! | `init` | process 1: starts the command, passes signals on, ends when it ends |
//! | `supervise` | the outside: terminal, job control, exit status |
//! | `sys` | the system calls that have no safe form |

mod door;
mod init;
pub mod spec;
mod supervise;
mod sys;

pub use door::enter;
pub use spec::Spec;
pub use supervise::{Ended, RunError, supervise};

use serde::{Deserialize, Serialize};

/// What those inside tell the supervisor.
#[derive(Debug, Serialize, Deserialize)]
enum News {
    /// The number of process 1, as seen from outside.
    Init(u32),
    /// The command runs.
    Started,
    /// It was stopped by a signal from the terminal.
    Stopped,
    /// It ended with this status.
    Exited(i32),
    /// It was ended by this signal.
    Signaled(i32),
    /// It could not be started: at which step, and why.
    Failed(String, i32),
}

/// What the supervisor asks of process 1.
#[derive(Debug, Serialize, Deserialize)]
enum Wish {
    /// Everything outside is ready: start the command.
    Go,
    /// Go on, and take the terminal.
    Continue,
    /// Pass this signal to the command.
    Signal(i32),
}
