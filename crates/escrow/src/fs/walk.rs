//! A parallel walk: visits every directory of a tree once, names as bytes, at any depth.
//!
//! Each directory is opened by its path from the root in one call, so no chain of handles is
//! held: the number of open files depends on the number of threads, not on the tree.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use rayon::prelude::*;
use rayon::{Scope, ThreadPool, ThreadPoolBuilder};

use super::FsError;
use super::dir::{Dir, DirEntry};
use crate::model::ResourcePath;

/// One directory, opened and listed.
pub struct DirVisit<'a, S> {
    /// The directory.
    pub dir: &'a Dir,
    /// Its path beneath the root of the walk.
    pub path: &'a ResourcePath,
    /// What is in it, sorted by name.
    pub entries: Vec<DirEntry>,
    /// What its parent's visit handed down.
    pub state: S,
}

/// The directories to go into next, each with what its visit is handed.
pub type NextDirs<S> = Vec<(Box<[u8]>, S)>;

/// The threads that wait for the file system. A few more than there are cores: they sleep often.
fn pool() -> &'static ThreadPool {
    static POOL: OnceLock<ThreadPool> = OnceLock::new();
    POOL.get_or_init(|| {
        let cores = std::thread::available_parallelism().map_or(2, usize::from);
        ThreadPoolBuilder::new()
            .num_threads((cores * 2).clamp(2, 16))
            .thread_name(|n| format!("escrow-fs-{n}"))
            .build()
            .expect("a process that cannot start a thread cannot go on")
    })
}

/// What several visits fill together.
#[derive(Debug, Default)]
pub struct Shared<T>(Mutex<T>);

impl<T> Shared<T> {
    /// With this to begin with.
    pub fn new(value: T) -> Self {
        Self(Mutex::new(value))
    }

    /// For one visit at a time. One that panicked ends everything anyway.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What they made of it.
    pub fn into_inner(self) -> T {
        self.0.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How many things are held while they are looked at together, and how few a thread is begun for.
const BATCH: usize = 4096;
const FEW: usize = 256;

/// Looks at things, several at once: `begin` gives each thread handles of its own, which keep the directory of the last path
/// open. `take` is given what was found, in their order. A few are looked at one after the other, in an order that fault
/// tests can repeat, up to the first failure.
pub fn look_at_all<H, T, R, E>(
    begin: impl Fn() -> H + Sync + Send,
    all: impl IntoIterator<Item = T>,
    look: impl Fn(&mut H, T) -> Result<R, E> + Sync + Send,
    mut take: impl FnMut(R) -> Result<(), E>,
) -> Result<(), E>
where
    T: Send,
    R: Send,
    E: Send,
{
    let mut all = all.into_iter();
    loop {
        let batch: Vec<T> = all.by_ref().take(BATCH).collect();
        let found: Vec<Result<R, E>> = match batch.len() {
            0 => return Ok(()),
            1..=FEW => {
                let mut own = begin();
                let mut few = batch.into_iter();
                return few.try_for_each(|one| take(look(&mut own, one)?));
            }
            _ => pool().install(|| {
                let batch = batch.into_par_iter().with_min_len(FEW);
                batch.map_init(&begin, &look).collect()
            }),
        };
        found.into_iter().try_for_each(|one| take(one?))?;
    }
}

/// A walk of no more directories needs no threads: to start them takes more than a hundred calls.
const ALONE: usize = 4;

struct TreeWalk<F, E> {
    visit: F,
    stopped: AtomicBool,
    failure: Shared<Option<E>>,
}

/// Visits `root` and then whatever the visits name, parents before children, siblings at once.
/// The first error ends the walk and is returned; a directory that is gone by the time of its
/// visit is none.
pub fn walk<S, E, F>(root: &Dir, state: S, visit: F) -> Result<(), E>
where
    S: Send,
    E: Send + From<FsError>,
    F: Fn(DirVisit<'_, S>) -> Result<NextDirs<S>, E> + Sync,
{
    descend(state, |path: &ResourcePath, state| {
        let dir = match root.dir(path) {
            // Removed, or replaced by a file, since its parent was listed: it is not there.
            Err(error) if error.is_absent() && !path.is_root() => return Ok(Vec::new()),
            answer => answer?,
        };
        let entries = dir.entries()?;
        visit(DirVisit {
            dir: &dir,
            path,
            entries,
            state,
        })
    })
}

/// The same for visits that open by themselves what there is at their path.
pub fn descend<S, E, F>(state: S, visit: F) -> Result<(), E>
where
    S: Send,
    E: Send,
    F: Fn(&ResourcePath, S) -> Result<NextDirs<S>, E> + Sync,
{
    let mut waiting = VecDeque::from([(ResourcePath::root(), state)]);
    for _ in 0..ALONE {
        let Some((path, state)) = waiting.pop_front() else {
            break;
        };
        let children = visit(&path, state)?.into_iter();
        waiting.extend(children.map(|(name, state)| (path.join(&name), state)));
    }
    if waiting.is_empty() {
        return Ok(());
    }
    let walk = TreeWalk {
        visit,
        stopped: AtomicBool::new(false),
        failure: Shared::new(None),
    };
    pool().scope(|scope| {
        for (path, state) in waiting {
            let walk = &walk;
            scope.spawn(move |scope| walk.step(scope, path, state));
        }
    });
    walk.failure.into_inner().map_or(Ok(()), Err)
}

impl<F, E> TreeWalk<F, E> {
    fn step<'s, S>(&'s self, scope: &Scope<'s>, path: ResourcePath, state: S)
    where
        S: Send + 's,
        E: Send,
        F: Fn(&ResourcePath, S) -> Result<NextDirs<S>, E> + Sync,
    {
        if self.stopped.load(Ordering::Relaxed) {
            return;
        }
        match (self.visit)(&path, state) {
            Ok(children) => {
                for (name, state) in children {
                    let path = path.join(&name);
                    scope.spawn(move |scope| self.step(scope, path, state));
                }
            }
            Err(error) => {
                self.stopped.store(true, Ordering::Relaxed);
                self.failure.lock().get_or_insert(error);
            }
        }
    }
}
