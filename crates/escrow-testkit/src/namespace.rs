//! Mount namespaces: one for each test that mounts, and real kernel overlay mounts, each in a namespace that ends with
//! the script that uses it.
//!
//! Promise: a path never becomes part of a mount option. The layers are opened as directories and named to the kernel
//! as `/proc/self/fd/N`, so commas, colons, backslashes and any bytes are safe.

use std::cell::Cell;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use rustix::mount::MountPropagationFlags;
use rustix::thread::UnshareFlags;

use crate::process;
use crate::skip::is_root;
use crate::user::as_user;
use crate::world::World;

thread_local! {
    static HAS_OWN_MOUNTS: Cell<bool> = const { Cell::new(false) };
}

/// Gives this thread, and what it starts from now on, mounts of its own. What a test mounts is then in no namespace that
/// another test clones meanwhile, so it can always be unmounted. Once for each thread; for root only.
///
/// # Panics
/// When the kernel refuses.
pub fn own_mounts() {
    if HAS_OWN_MOUNTS.get() {
        return;
    }
    #[expect(unsafe_code, reason = "rustix has no safe form")]
    // SAFETY: a namespace of mounts, and with it a working directory of its own, harms no memory. The test that runs on
    // this thread, and nothing else, depends on them.
    let done = unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNS) };
    // The machine's own mounts may still go while the test runs.
    let flags = MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC;
    done.and_then(|()| rustix::mount::mount_change("/", flags))
        .unwrap_or_else(|error| panic!("cannot have mounts of its own: {error}"));
    HAS_OWN_MOUNTS.set(true);
}

/// Something that the test has mounted among mounts of its own; it ends with the value, also in a panic.
#[derive(Debug)]
pub struct Mounted(PathBuf);

impl Mounted {
    /// Runs `mount` with `args`, then the place, which lies in a world; paths in `args` may begin at its parent.
    ///
    /// # Panics
    /// When it cannot be mounted.
    pub fn new(args: impl IntoIterator<Item = impl AsRef<OsStr>>, at: &Path) -> Self {
        own_mounts();
        let mut command = Command::new("mount");
        command.args(args).arg(at);
        command.current_dir(at.parent().expect("it lies in a world"));
        process::succeed(command);
        Self(at.to_owned())
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // Lazily, since nothing else can be done about what is still in use. The world says what is left.
        let mut ended = Command::new("umount");
        ended.args(["--lazy", "--"]).arg(&self.0);
        drop(ended.status());
    }
}

/// Where the kernel keeps its overlay marks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum XattrKind {
    /// `user.overlay.*`, in a user namespace that maps only the caller: what an ordinary user gets. Files of other
    /// owners belong to no process in there, even for root, and cannot be changed.
    User,
    /// `trusted.overlay.*`, without a user namespace: root only.
    Trusted,
}

/// An overlay of one lower and one upper directory. It is mounted anew for each run; the upper directory stays.
#[derive(Debug, Clone, Copy)]
pub struct OverlayMount<'a> {
    /// The layer that is only read.
    pub lower: &'a Path,
    /// The layer that takes the changes.
    pub upper: &'a Path,
    /// The kernel's working directory, empty, on the file system of `upper`.
    pub work: &'a Path,
    /// The kind of marks.
    pub xattr: XattrKind,
}

/// Mounts, then becomes the script, with the umask 022.
/// `$1 $2 $3` are the layers, `$4` the mount point, `$5` the script, `$6` options.
const WRAPPER: &str = r#"
umask 022
exec 3<"$1" 4<"$2" 5<"$3"
mount -t overlay overlay -o "$6lowerdir=/proc/self/fd/3,upperdir=/proc/self/fd/4,workdir=/proc/self/fd/5" "$4"
exec 3<&- 4<&- 5<&-
cd "$4"
exec sh -eu "$5"
"#;

impl OverlayMount<'_> {
    /// Runs `script` by `sh -eu` with the merged view as its working directory, as the user who runs the test.
    ///
    /// # Panics
    /// When mounting or the script fails, with both streams.
    pub fn run(&self, script: &str) -> Output {
        self.start(script, None)
    }

    /// Copies the merged view by `cp -a`, from inside, to `dest`, which is made if need be. `cp` cannot copy paths
    /// beyond PATH_MAX, nor, in a user namespace, owners other than the caller and `trusted.*`.
    pub fn snapshot_merged_to(&self, dest: &Path) {
        self.start(SNAPSHOT, Some(dest));
    }

    fn start(&self, script: &str, dest: Option<&Path>) -> Output {
        let world = World::new();
        let merged = world.dir("merged");
        // A file, because one argument of a process is at most 128 KiB.
        let file = world.path().join("script");
        std::fs::write(&file, script)
            .unwrap_or_else(|error| panic!("cannot write {}: {error}", file.display()));
        let (mut command, options) = self.unshare();
        command.args(["sh", "-eu", "-c", WRAPPER, "overlay"]);
        command
            .args([self.lower, self.upper, self.work, &merged, &file])
            .arg(options);
        if let Some(dest) = dest {
            let dest = std::path::absolute(dest)
                .unwrap_or_else(|error| panic!("cannot tell where {} is: {error}", dest.display()));
            command.env("DEST", dest);
        }
        process::succeed(command)
    }

    fn unshare(&self) -> (Command, &'static OsStr) {
        match (self.xattr, is_root()) {
            (XattrKind::Trusted, true) => {
                let mut command = Command::new("unshare");
                command.arg("-m");
                (command, OsStr::new(""))
            }
            (XattrKind::Trusted, false) => {
                panic!("only root can mount an overlay with trusted.overlay.* marks")
            }
            (XattrKind::User, true) => {
                let mut command = Command::new("unshare");
                command.args(["-U", "-m", "--map-root-user"]);
                (command, OsStr::new("userxattr,"))
            }
            (XattrKind::User, false) => {
                let mut command = as_user("unshare");
                // The user keeps the own id; mount(8) is content with capabilities in place of the id 0.
                command.args(["-U", "-m", "--map-current-user", "--keep-caps"]);
                (command, OsStr::new("userxattr,"))
            }
        }
    }
}

const SNAPSHOT: &str = r#"mkdir -p -- "$DEST"; cp -a -- ./. "$DEST/""#;
