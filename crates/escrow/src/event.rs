//! What the engine tells while it works, to whoever wants to show it.

/// Someone who watches long work.
pub trait Observer: Sync {
    /// So many more entries and bytes were copied. Called from several threads.
    fn copied(&self, entries: u64, bytes: u64);

    /// Whether the work should be given up; what was begun is then taken away again.
    fn is_cancelled(&self) -> bool {
        false
    }
}

/// Nobody watches.
#[derive(Debug, Clone, Copy, Default)]
pub struct Unobserved;

impl Observer for Unobserved {
    fn copied(&self, _entries: u64, _bytes: u64) {}
}
