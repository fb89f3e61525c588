//! A file that is wholly old or wholly new, also after a power cut.
//!
//! The new bytes go into a file of another name, are synced once, and take the place of the old
//! by a rename; then the directory is synced. A failed sync is final: the kernel has forgotten
//! which pages were lost, so the staged file is thrown away and never synced again.

use std::fs::File;
use std::io::{BufWriter, Write};

use rustix::io::Errno;

use super::beneath::Dir;
use super::{Cause, Result};

/// Writes a new file `staged` in `stage`, then moves it to `name` in `to`.
///
/// `finish` may give the staged file its owner and mode before it can be seen.
pub fn replace(
    stage: &Dir,
    staged: &[u8],
    to: &Dir,
    name: &[u8],
    write: impl FnOnce(&mut BufWriter<&File>) -> std::io::Result<()>,
    finish: impl FnOnce(&File) -> Result<()>,
) -> Result<()> {
    let file = stage.create(staged, 0o666)?;
    let written = (|| {
        let mut buffered = BufWriter::with_capacity(128 * 1024, &file);
        let io = |action| {
            move |error: std::io::Error| {
                let errno = Errno::from_io_error(&error).unwrap_or(Errno::IO);
                to.error(action, name, Cause::Os(errno))
            }
        };
        write(&mut buffered).map_err(io("write"))?;
        buffered.flush().map_err(io("write"))?;
        drop(buffered);
        finish(&file)?;
        file.sync_all().map_err(io("sync"))?;
        stage.rename(staged, to, name)
    })();
    if let Err(error) = written {
        // The first error is the one to tell; a staged file that stays is swept with its area.
        return match stage.unlink(staged) {
            Ok(()) | Err(_) => Err(error),
        };
    }
    to.sync()
}
