//! What a command inside shares with the program that runs it: standard input, terminal, signals, limits.

use std::any::Any;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Command, Stdio};

use rustix::fs::{FileType, fstat};

/// Attaches commands to the terminal and the signals of the program that runs them. [`Detached`] shares nothing.
pub trait Console: Send + Sync {
    /// Called before each command that is confined; what is returned lives until the command has ended.
    fn attach(&self) -> io::Result<Attached>;

    /// Whether commands read the standard input of this process; else they read nothing.
    fn input(&self) -> bool {
        false
    }

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

/// Connects the streams of a program that is about to be started.
pub(crate) fn connect(
    program: &mut Command,
    console: &dyn Console,
    output: Output,
) -> io::Result<()> {
    match console.input() {
        true => shield_input(program)?,
        false => drop(program.stdin(Stdio::null())),
    }
    if output == Output::Error {
        program.stdout(io::stderr().as_fd().try_clone_to_owned()?);
    }
    Ok(())
}

/// Gives a program a file on standard input as a pipe: through a descriptor of the file itself it could be opened
/// again, for writing.
fn shield_input(program: &mut Command) -> io::Result<()> {
    let input = io::stdin().as_fd().try_clone_to_owned()?;
    match FileType::from_raw_mode(fstat(&input)?.st_mode) {
        // A program could write into a directory that it has open.
        FileType::Directory => drop(program.stdin(Stdio::null())),
        FileType::RegularFile => {
            let (read, mut write) = io::pipe()?;
            program.stdin(read);
            let mut input = std::fs::File::from(input);
            std::thread::spawn(move || match io::copy(&mut input, &mut write) {
                // A program that does not read to the end needs no more.
                Ok(_) | Err(_) => {}
            });
        }
        _ => {}
    }
    Ok(())
}
