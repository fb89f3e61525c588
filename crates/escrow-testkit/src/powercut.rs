//! Power cuts: what the disk of a loop file system holds at one point in time, and going on with that.
//!
//! Promise: a disk holds everything that the file system has sent to it until then, and nothing that was in memory
//! only. It is the state of one snapshot even while the file system is at work. It does not lose, as a drive with a
//! volatile cache may, what was sent but not flushed.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::thread;
use std::time::Duration;

use rustix::fs::SeekFrom;
use rustix::io::Errno;

use crate::loopfs::LoopFs;

/// What a disk holds at one point in time. Can be used any number of times, but in one [`LoopFs`] at a time.
#[derive(Debug)]
pub struct Disk {
    file: File,
}

impl LoopFs {
    /// What a power cut would leave now. Changes nothing; meant for `Stepper::stop_at`.
    pub fn disk_now(&self) -> Disk {
        let device = self.device();
        let writes = || {
            let path = device.join("stat");
            let text = std::fs::read_to_string(&path)
                .unwrap_or_else(|error| panic!("cannot read {}: {error}", path.display()));
            let numbers: Vec<&str> = text.split_whitespace().collect();
            // Writes, requests under way, discards.
            let get = |at| *numbers.get(at).unwrap_or(&"");
            [get(4), get(8), get(11)].map(str::to_owned)
        };
        for _ in 0..1000 {
            let before = writes();
            if before[1] == "0" {
                let disk = self.copy();
                if writes() == before {
                    return disk;
                }
            }
            thread::sleep(Duration::from_millis(2));
        }
        panic!("{} is never at rest", self.path().display());
    }

    /// What the disk holds when all is written and unmounted; then mounts it again.
    pub fn disk_at_rest(&mut self) -> Disk {
        self.unmount();
        let disk = self.copy();
        self.mount();
        disk
    }

    /// Ends what is mounted, and mounts a copy of `disk` at the same path, as if the power had come back. Nothing may
    /// be open on what was mounted.
    ///
    /// # Panics
    /// When either cannot be done: a file system that does not survive the power cut is a failure.
    pub fn boot(&mut self, disk: &Disk) {
        self.unmount();
        let image = self.new_image(0);
        copy(&disk.file, &image)
            .unwrap_or_else(|error| panic!("cannot fill {}: {error}", self.image().display()));
        drop(image);
        self.mount();
    }

    fn copy(&self) -> Disk {
        let path = self.image();
        let make = || {
            let file = tempfile::tempfile_in(path.parent().expect("an image is in a directory"))?;
            copy(&File::open(&path)?, &file)?;
            Ok::<_, io::Error>(Disk { file })
        };
        make().unwrap_or_else(|error| panic!("cannot copy {}: {error}", path.display()))
    }
}

const BLOCK: usize = 4096;

/// Copies a file into an empty one. Zeros become holes.
fn copy(from: &File, to: &File) -> io::Result<()> {
    let size = from.metadata()?.len();
    to.set_len(size)?;
    let zeros = [0; BLOCK];
    let mut buffer = vec![0; 64 * BLOCK];
    let mut at = 0;
    loop {
        at = match rustix::fs::seek(from, SeekFrom::Data(at)) {
            Ok(data) => data,
            Err(Errno::NXIO) => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        let end = rustix::fs::seek(from, SeekFrom::Hole(at))?;
        while at < end {
            let want =
                usize::try_from(end - at).map_or(buffer.len(), |left| left.min(buffer.len()));
            let part = &mut buffer[..want];
            from.read_exact_at(part, at)?;
            for block in part.chunks(BLOCK) {
                if *block != zeros[..block.len()] {
                    to.write_all_at(block, at)?;
                }
                at += block.len() as u64;
            }
        }
    }
}
