//! Progress and notices that the engine reports to its caller while it works.

use std::sync::{Mutex, PoisonError};

/// An observer of long work.
pub trait Observer: Sync {
    /// So many more entries and bytes were copied. Called from several threads.
    fn copied(&self, entries: u64, bytes: u64);

    /// Whether the work should be given up; what was begun is then taken away again.
    fn is_cancelled(&self) -> bool {
        false
    }

    /// Something that the caller should know of its result.
    fn notice(&self, _what: String) {}

    /// This command of the configuration begins to validate what is to be committed.
    fn validating(&self, _command: &str) {}
}

/// Keeps what is to be known until the work is over; the rest goes to another.
pub(crate) struct BufferedObserver<'a> {
    to: &'a dyn Observer,
    told: Mutex<Vec<String>>,
}

impl<'a> BufferedObserver<'a> {
    pub(crate) fn new(to: &'a dyn Observer) -> Self {
        Self {
            to,
            told: Mutex::default(),
        }
    }

    /// What is to be known.
    pub(crate) fn heard(self) -> Vec<String> {
        let told = self.told.into_inner();
        told.unwrap_or_else(PoisonError::into_inner)
    }
}

impl Observer for BufferedObserver<'_> {
    fn copied(&self, entries: u64, bytes: u64) {
        self.to.copied(entries, bytes);
    }

    fn is_cancelled(&self) -> bool {
        self.to.is_cancelled()
    }

    fn notice(&self, what: String) {
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        told.push(what);
    }

    fn validating(&self, command: &str) {
        self.to.validating(command);
    }
}

/// No observer.
#[derive(Debug, Clone, Copy, Default)]
pub struct Unobserved;

impl Observer for Unobserved {
    fn copied(&self, _entries: u64, _bytes: u64) {}
}
