//! A file system of a wanted kind in a loop image, mounted while the value lives.

use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use crate::namespace::own_mounts;
use crate::process;
use crate::skip::require_root;
use crate::world::{World, memory};

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
    kind: Fs,
    mount: PathBuf,
    mounted: bool,
    // Last: removed after the unmount in `drop`.
    world: World,
}

impl LoopFs {
    /// Makes and mounts a file system of at least `size_mib` (more where the kind cannot be so small). The image is
    /// sparse, and in memory if there is room: its syncs are quick, and so are power cuts. None, after recording the skip, for an ordinary user.
    pub fn new(kind: Fs, size_mib: u64) -> Option<Self> {
        Self::with_mkfs_args(kind, size_mib, &[])
    }

    /// [`LoopFs::new`] with more arguments for mkfs, such as `-N 32` for an ext4 that soon has no more inodes.
    pub fn with_mkfs_args(kind: Fs, size_mib: u64, more: &[&str]) -> Option<Self> {
        let room = 2 * size_mib.max(kind.minimum_mib()) * 1024 * 1024;
        // Otherwise the kernel goes on with mkfs's work after the mount.
        let args: &[&str] = match kind {
            Fs::Ext4 => &["-E", "lazy_itable_init=0"],
            Fs::Xfs | Fs::Btrfs => &[],
        };
        Self::make(kind, size_mib, &[args, more].concat(), &memory(room))
    }

    /// [`LoopFs::with_mkfs_args`] with the image on a disk, to measure.
    pub fn on_disk(kind: Fs, size_mib: u64, args: &[&str]) -> Option<Self> {
        Self::make(kind, size_mib, args, &std::env::temp_dir())
    }

    fn make(kind: Fs, size_mib: u64, args: &[&str], base: &Path) -> Option<Self> {
        if !require_root("mounting a loop file system") {
            return None;
        }
        own_mounts();
        let world = World::under(base);
        let mut fs = Self {
            kind,
            mount: world.dir("mnt"),
            mounted: false,
            world,
        };
        let size = size_mib.max(kind.minimum_mib()) * 1024 * 1024;
        fs.new_image(size);
        let mut mkfs = kind.mkfs();
        mkfs.args(args).arg(fs.image());
        process::succeed(mkfs);
        fs.mount();
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

    /// Makes an image of holes only; one that was there is gone.
    pub(crate) fn new_image(&self, size: u64) -> File {
        let path = self.image();
        let make = || {
            if path.exists() {
                fs::remove_file(&path)?;
            }
            let file = File::create_new(&path)?;
            file.set_len(size).map(|()| file)
        };
        make().unwrap_or_else(|error| panic!("cannot make the image {}: {error}", path.display()))
    }

    /// Mounts the image.
    pub(crate) fn mount(&mut self) {
        // Waited for directly: power cuts mount often, and looking now and then costs as much again.
        let output = Command::new("mount")
            .args(["-t", self.kind.name(), "-o", "loop"])
            .args([&self.image(), &self.mount])
            .output()
            .unwrap_or_else(|error| panic!("cannot start mount: {error}"));
        assert!(
            output.status.success(),
            "cannot mount {}: {}",
            self.image().display(),
            String::from_utf8_lossy(&output.stderr)
        );
        self.mounted = true;
    }

    /// Unmounts, and returns when the file system is really gone: a namespace that the test made may have a copy of the
    /// mount for a while, and the kernel takes no two file systems of the same identity.
    pub(crate) fn unmount(&mut self) {
        let device = self.device();
        assert!(
            self.end(process::LIMIT),
            "cannot unmount {}",
            self.mount.display()
        );
        self.mounted = false;
        let until = Instant::now() + process::LIMIT;
        while self.is_behind(&device) {
            assert!(
                Instant::now() < until,
                "{} is unmounted, but {} still has its image",
                self.mount.display(),
                device.display(),
            );
            thread::sleep(Duration::from_micros(500));
        }
    }

    /// What the kernel says about the loop device of this mount.
    pub(crate) fn device(&self) -> PathBuf {
        fs::read_dir("/sys/block")
            .unwrap_or_else(|error| panic!("cannot list /sys/block: {error}"))
            .filter_map(|entry| Some(entry.ok()?.path()))
            .find(|device| self.is_behind(device))
            .unwrap_or_else(|| panic!("no loop device has {}", self.image().display()))
    }

    fn is_behind(&self, device: &Path) -> bool {
        // The kernel knows the path without links.
        let Ok(image) = self.image().canonicalize() else {
            return false;
        };
        fs::read(device.join("loop/backing_file"))
            .is_ok_and(|name| name.trim_ascii_end() == image.as_os_str().as_bytes())
    }

    /// Whether it could be unmounted within `limit`: what a process that was killed had open goes a little later.
    fn end(&self, limit: Duration) -> bool {
        let until = Instant::now() + limit;
        loop {
            if self.umount(false) {
                return true;
            }
            if Instant::now() > until {
                return false;
            }
            thread::sleep(Duration::from_millis(20));
        }
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
        if self.mounted && !self.end(Duration::from_secs(1)) {
            self.umount(true);
        }
    }
}
