//! What a command inside shares with the program that runs it: standard input, terminal, signals, limits.

use std::any::Any;
use std::io;
use std::os::fd::OwnedFd;

/// Attaches commands to the terminal and the signals of the program that runs them. [`Detached`] shares nothing.
pub trait Console: Send + Sync {
    /// Called before each command that is confined; what is returned lives until the command has ended.
    fn attach(&self) -> io::Result<Attached>;

    /// Whether commands read the standard input of this process; else they read nothing.
    fn input(&self) -> bool {
        false
    }

    /// Says what is waited for, once that takes long enough to be noticed.
    fn waits(&self, _what: &str) {}

    /// Says at once that a command is about to run in another way than usual.
    fn begins(&self, _how: &str) {}

    /// How many files commands may have open, if not as many as this process.
    fn files(&self) -> Option<u64> {
        None
    }
}

/// A command that reads nothing, has no terminal and gets no signals.
#[derive(Debug, Clone, Copy, Default)]
pub struct Detached;

impl Console for Detached {
    fn attach(&self) -> io::Result<Attached> {
        Ok(Attached::default())
    }
}

/// What one command shares with the program that runs it.
#[derive(Default)]
pub struct Attached {
    /// The terminal.
    pub terminal: Option<OwnedFd>,
    /// Whether it gets the terminal at once.
    pub front: bool,
    /// Signals to pass on, each readable when it comes.
    pub signals: Vec<(i32, OwnedFd)>,
    /// Dropped when the command has ended.
    pub guard: Option<Box<dyn Any>>,
}

/// Where the standard output of a command goes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Output {
    /// To that of this process.
    #[default]
    Own,
    /// To the standard error of this process.
    Error,
}
