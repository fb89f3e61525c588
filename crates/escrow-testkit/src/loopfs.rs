//! A file system of a wanted kind in a loop image, mounted while the value lives.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::process;
use crate::skip::require_root;
use crate::world::World;

/// The kinds of file system that can be made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fs {
    /// ext4 with blocks of 4 KiB and inodes of 256 bytes, whatever the size of the image: no reflinks.
    Ext4,
    /// XFS with reflinks and times beyond 2038.
    Xfs,
    /// Btrfs with its defaults: reflinks and snapshots.
    Btrfs,
}

impl Fs {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Ext4, Self::Xfs, Self::Btrfs];

    fn minimum_mib(self) -> u64 {
        match self {
            Self::Ext4 => 8,
            Self::Xfs => 300,
            Self::Btrfs => 128,
        }
    }

    fn mkfs(self) -> Command {
        let (program, options): (_, &[&str]) = match self {
            Self::Ext4 => (
                "mkfs.ext4",
                &["-q", "-F", "-b", "4096", "-I", "256", "-E", "nodiscard"],
            ),
            Self::Xfs => ("mkfs.xfs", &["-q", "-f", "-K", "-m", "bigtime=1,reflink=1"]),
            Self::Btrfs => ("mkfs.btrfs", &["-q", "-f", "-K"]),
        };
        let mut command = Command::new(program);
        command.args(options);
        command
    }

    fn name(self) -> &'static str {
        match self {
            Self::Ext4 => "ext4",
            Self::Xfs => "xfs",
            Self::Btrfs => "btrfs",
        }
    }
}

/// A mounted loop image. Worlds in it must be dropped before it.
#[derive(Debug)]
pub struct LoopFs {
    mount: PathBuf,
    mounted: bool,
    // Last: removed after the unmount in `drop`.
    world: World,
}

impl LoopFs {
    /// Makes and mounts a file system of at least `size_mib` (more where the kind cannot be so small); the image is
    /// sparse. None, after recording the skip, for an ordinary user.
    pub fn new(kind: Fs, size_mib: u64) -> Option<Self> {
        Self::with_mkfs_args(kind, size_mib, &[])
    }

    /// [`LoopFs::new`] with more arguments for mkfs, such as `-N 32` for an ext4 that soon has no more inodes.
    pub fn with_mkfs_args(kind: Fs, size_mib: u64, args: &[&str]) -> Option<Self> {
        if !require_root("mounting a loop file system") {
            return None;
        }
        let world = World::new();
        let image = world.path().join("image");
        let size = size_mib.max(kind.minimum_mib()) * 1024 * 1024;
        File::create(&image)
            .and_then(|file| file.set_len(size))
            .unwrap_or_else(|error| panic!("cannot make the image {}: {error}", image.display()));
        let mut mkfs = kind.mkfs();
        mkfs.args(args).arg(&image);
        process::succeed(mkfs);
        let mount = world.dir("mnt");
        let mut fs = Self {
            mount,
            mounted: false,
            world,
        };
        let mut command = Command::new("mount");
        command
            .args(["-t", kind.name(), "-o", "loop"])
            .arg(&image)
            .arg(&fs.mount);
        process::succeed(command);
        fs.mounted = true;
        Some(fs)
    }

    /// The root of the file system.
    pub fn path(&self) -> &Path {
        &self.mount
    }

    /// The image file behind it.
    pub fn image(&self) -> PathBuf {
        self.world.path().join("image")
    }

    fn umount(&self, lazily: bool) -> bool {
        let mut command = Command::new("umount");
        if lazily {
            command.arg("-l");
        }
        command
            .arg("--")
            .arg(&self.mount)
            .output()
            .is_ok_and(|output| output.status.success())
    }
}

impl Drop for LoopFs {
    fn drop(&mut self) {
        if !self.mounted {
            return;
        }
        for _ in 0..10 {
            if self.umount(false) {
                return;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        self.umount(true);
    }
}
