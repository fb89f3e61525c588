//! Atomic file replacement: a file is wholly old or wholly new, also after a power cut.
//!
//! The new bytes go into a file without a name, are synced once, and then take the place of the
//! old; then the directory is synced. Killed at any point, nothing half done can be seen. A failed
//! sync is final: the kernel has forgotten which pages were lost, so the file is thrown away and
//! never synced again.

use std::collections::HashSet;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use rustix::io::Errno;

use super::Result;
use super::dir::Dir;

/// Makes everything on the file systems of these directories durable: one sync for each file system, however many
/// directories lie on it.
pub fn sync_file_systems<'a>(directories: impl IntoIterator<Item = &'a Path>) -> Result<()> {
    let mut synced = HashSet::new();
    for path in directories {
        let dir = Dir::open(path)?;
        if synced.insert(dir.meta()?.dev) {
            dir.sync_file_system()?;
        }
    }
    Ok(())
}

/// Puts a file with these bytes at `name` in `to`, durably, by way of `stage`.
pub fn replace(stage: &Dir, to: &Dir, name: &[u8], bytes: &[u8]) -> Result<()> {
    let draft = AtomicFile {
        stage,
        to,
        name,
        fresh: false,
        synced: true,
    };
    draft.write(|file| file.write_all(bytes), |_| Ok(()))
}

/// Puts a new file with these bytes at `name` in a directory, durably. One that is there after all is replaced.
pub fn create(dir: &Dir, name: &[u8], bytes: &[u8]) -> Result<()> {
    let draft = AtomicFile {
        stage: dir,
        to: dir,
        name,
        fresh: true,
        synced: true,
    };
    draft.write(|file| file.write_all(bytes), |_| Ok(()))
}

/// A file on its way to its place.
pub struct AtomicFile<'a> {
    /// Where it may have a private name temporarily, on the same file system.
    pub stage: &'a Dir,
    /// Where it goes.
    pub to: &'a Dir,
    /// Its name there.
    pub name: &'a [u8],
    /// Nothing is there yet: it takes group and access control list from `to`, as any new file.
    pub fresh: bool,
    /// Whether it is synced; otherwise the caller syncs the file system before anything relies on it.
    pub synced: bool,
}

impl AtomicFile<'_> {
    /// Writes the file and puts it in its place. `finish` may give it owner and mode before it
    /// can be seen.
    pub fn write(
        &self,
        write: impl FnOnce(&mut BufWriter<&File>) -> std::io::Result<()>,
        finish: impl FnOnce(&File) -> Result<()>,
    ) -> Result<()> {
        let Self { to, name, .. } = self;
        let staged = format!(".escrow-{}", uuid::Uuid::now_v7().simple()).into_bytes();
        let (file, named) = self.begin(&staged)?;
        let io = |action| move |error: std::io::Error| to.io_error(action, name, &error);
        let done = (|| {
            let mut buffered = BufWriter::with_capacity(128 * 1024, &file);
            write(&mut buffered).map_err(io("write"))?;
            buffered.flush().map_err(io("write"))?;
            drop(buffered);
            finish(&file)?;
            if self.synced {
                file.sync_all().map_err(io("sync"))?;
            }
            self.publish(&file, &staged, named)
        })();
        if let Err(error) = done {
            // The first error is the one to report; a staged name that stays goes with its area.
            return match self.stage.unlink(&staged) {
                Ok(()) | Err(_) => Err(error),
            };
        }
        match self.synced {
            true => to.sync(),
            false => Ok(()),
        }
    }

    /// A new file, and whether it has its staged name already because it cannot do without.
    fn begin(&self, staged: &[u8]) -> Result<(File, bool)> {
        let home = if self.fresh { self.to } else { self.stage };
        match home.create_unnamed(0o666) {
            Err(error) if error.is(Errno::OPNOTSUPP) || error.is(Errno::ISDIR) => {
                Ok((self.stage.create(staged, 0o666)?, true))
            }
            answer => Ok((answer?, false)),
        }
    }

    fn publish(&self, file: &File, staged: &[u8], named: bool) -> Result<()> {
        if !named && self.fresh {
            match self.to.name_it(file, self.name) {
                // A whiteout, for one, stands there after all.
                Err(error) if error.is(Errno::EXIST) => {}
                answer => return answer,
            }
        }
        if !named {
            self.stage.name_it(file, staged)?;
        }
        self.stage.rename(staged, self.to, self.name)
    }
}
