//! The metadata zoo: one tree with every odd thing a directory can hold, each with distinctive values.
//!
//! Promise: the same names are there on ext4, XFS and Btrfs, for root and for an ordinary user; what only root can
//! make is added for root. Every entry has an old modification time of its own, to the nanosecond.

use std::ffi::OsStr;
use std::fs::{self, File, Permissions};
use std::io::{Seek, SeekFrom, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::fs::{AtFlags, FileType, Mode, OFlags, XattrFlags};

use crate::process;
use crate::skip::is_root;
use crate::walk;

mod times;

/// Names that break the process that takes a name for text.
pub const NAMES: &[&[u8]] = &[
    b"new\nline",
    b"tab\there",
    b"double\"quote",
    b"single'quote",
    b"-rf",
    b"--help",
    b"$(x)",
    b"`x`",
    b";",
    b"a b",
    b" lead",
    b"trail ",
    b"*",
    b"\\",
    b"back\\slash",
    b"per%cent%s",
    b"comma,colon:",
    b"invalid-\xff\xfe-utf8",
    b"\xc3",
    b"Case",
    b"case",
    b"caf\xc3\xa9",
    b"cafe\xcc\x81",
    b"rtl-\xe2\x80\x8f\xe2\x80\xaegpj",
    b"esc-\x1b[31m",
    b"...",
    b".hidden",
    b"\x01",
    b".wh.whiteout",
    b"~",
];

/// What a test should know about the zoo it got.
#[derive(Debug, Clone, Default)]
pub struct ZooFacts {
    /// Relative paths of the sockets and devices: never copied, always warned about.
    pub skipped_by_rule: Vec<PathBuf>,
    /// Relative paths of files that have a setuid or setgid bit or capabilities.
    pub privileged: Vec<PathBuf>,
    /// Whether POSIX ACLs could be set here.
    pub acls: bool,
}

/// Builds the zoo in the existing, empty directory `root`.
///
/// # Panics
/// When anything in it cannot be made.
pub fn zoo(root: &Path) -> ZooFacts {
    let mut facts = ZooFacts::default();
    let zoo = Zoo { root };
    zoo.names();
    zoo.sizes();
    zoo.links();
    zoo.special(&mut facts);
    zoo.depth();
    zoo.attributes(&mut facts);
    zoo.owners();
    zoo.modes(&mut facts);
    times::set(root);
    facts
}

struct Zoo<'a> {
    root: &'a Path,
}

impl Zoo<'_> {
    fn at(&self, path: impl AsRef<Path>) -> PathBuf {
        self.root.join(path)
    }

    fn file(&self, path: impl AsRef<Path>, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.at(path);
        File::create_new(&path)
            .and_then(|mut file| file.write_all(content.as_ref()))
            .unwrap_or_else(|error| panic!("cannot make the file {}: {error}", path.display()));
        chmod(&path, 0o640);
        path
    }

    fn dir(&self, path: impl AsRef<Path>) -> PathBuf {
        let path = self.at(path);
        fs::create_dir(&path).unwrap_or_else(|error| {
            panic!("cannot make the directory {}: {error}", path.display())
        });
        chmod(&path, 0o755);
        path
    }

    fn symlink(&self, target: impl AsRef<Path>, path: impl AsRef<Path>) {
        let path = self.at(path);
        symlink(target, &path)
            .unwrap_or_else(|error| panic!("cannot make the link {}: {error}", path.display()));
    }

    fn hard_link(&self, from: impl AsRef<Path>, to: impl AsRef<Path>) {
        let (from, to) = (self.at(from), self.at(to));
        // Without AT_SYMLINK_FOLLOW, so a symlink gets a second name itself.
        rustix::fs::linkat(
            rustix::fs::CWD,
            &from,
            rustix::fs::CWD,
            &to,
            AtFlags::empty(),
        )
        .unwrap_or_else(|error| {
            panic!(
                "cannot link {} to {}: {error}",
                from.display(),
                to.display()
            )
        });
    }

    fn names(&self) {
        self.dir("names");
        self.dir("names-dirs");
        for name in NAMES {
            let name = OsStr::from_bytes(name);
            self.file(Path::new("names").join(name), name.as_bytes());
            self.dir(Path::new("names-dirs").join(name));
        }
        let longest = "n".repeat(255);
        self.file(Path::new("names").join(&longest), "255 bytes of name");
        self.dir(Path::new("names-dirs").join(&longest));
        self.dir("empty");
        self.dir("empty/empty too");
    }

    fn sizes(&self) {
        self.dir("sizes");
        self.file("sizes/empty", "");
        self.file("sizes/one", "1");
        self.file("sizes/exact-block", [b'b'; 4096]);
        self.file("sizes/zeros-written", [0; 8192]);
        let sparse = |name: &str, parts: &[(u64, &[u8])], length: u64| {
            let path = self.file(Path::new("sizes").join(name), "");
            let write = || {
                let mut file = File::options().write(true).open(&path)?;
                file.set_len(length)?;
                for (at, bytes) in parts {
                    file.seek(SeekFrom::Start(*at))?;
                    file.write_all(bytes)?;
                }
                file.sync_all()
            };
            write().unwrap_or_else(|error: std::io::Error| {
                panic!("cannot fill {}: {error}", path.display())
            });
        };
        sparse("sparse-64m", &[(64 << 20, b"6bytes")], (64 << 20) + 6);
        sparse(
            "hole-in-the-middle",
            &[(0, b"head"), (1 << 20, b"tail")],
            (1 << 20) + 4,
        );
        sparse("hole-at-the-end", &[(0, b"head")], 1 << 20);
        sparse("all-hole", &[], 1 << 20);
    }

    fn links(&self) {
        self.dir("links");
        self.dir("links/other");
        self.dir("links/other/deeper");
        self.file("links/hard-1", "one inode, three names");
        self.hard_link("links/hard-1", "links/other/hard-2");
        self.hard_link("links/hard-1", "links/other/deeper/hard-3");
        self.symlink("hard-1", "links/relative");
        self.hard_link("links/relative", "links/other/relative-hard-linked");
        self.symlink("/etc/hostname", "links/absolute");
        self.symlink(self.at("links"), "links/absolute-inside");
        self.symlink("does/not/exist", "links/broken");
        self.symlink("loop-b", "links/loop-a");
        self.symlink("loop-a", "links/loop-b");
        self.symlink("self", "links/self");
        self.symlink("other", "links/to-directory");
        self.symlink("../../../../../../../../etc", "links/outside");
        self.symlink("t".repeat(1000), "links/long-target");
        self.symlink(OsStr::from_bytes(b"bytes\n\xff"), "links/odd-target");
    }

    fn special(&self, facts: &mut ZooFacts) {
        let dir = self.dir("special");
        let handle = walk::open_root(&dir);
        let make = |name: &str, kind: FileType, device: u64| {
            let mode = Mode::from_raw_mode(0o620);
            rustix::fs::mknodat(&handle, name, kind, mode, device)
                .and_then(|()| rustix::fs::chmodat(&handle, name, mode, AtFlags::empty()))
                .unwrap_or_else(|error| panic!("cannot make {name} in {}: {error}", dir.display()));
        };
        make("fifo", FileType::Fifo, 0);
        // Through the handle, because the address of a socket holds 107 bytes only.
        let address = format!("/proc/self/fd/{}/socket", handle.as_raw_fd());
        drop(
            UnixListener::bind(&address)
                .unwrap_or_else(|e| panic!("cannot bind in {}: {e}", dir.display())),
        );
        facts.skipped_by_rule.push("special/socket".into());
        if is_root() {
            make(
                "char-1-3",
                FileType::CharacterDevice,
                rustix::fs::makedev(1, 3),
            );
            make(
                "block-7-0",
                FileType::BlockDevice,
                rustix::fs::makedev(7, 0),
            );
            facts
                .skipped_by_rule
                .extend(["special/char-1-3".into(), "special/block-7-0".into()]);
        }
    }

    fn depth(&self) {
        let forty: PathBuf = std::iter::once("deep".to_owned())
            .chain((1..=40).map(|n| format!("d{n:02}")))
            .collect();
        for path in forty
            .ancestors()
            .collect::<Vec<_>>()
            .into_iter()
            .rev()
            .skip(1)
        {
            self.dir(path);
        }
        self.file(forty.join("bottom"), "forty levels down");
        // 30 names of 200 bytes are 6,030 bytes: no single path can name the end.
        let mut at = walk::open_root(&self.dir("beyond-path-max"));
        for level in 0..30 {
            let name = format!("{level:02}-{}", "p".repeat(197));
            at = rustix::fs::mkdirat(&at, &name, Mode::from_raw_mode(0o755))
                .and_then(|()| walk::open_dir(at.as_fd(), name.as_bytes()))
                .unwrap_or_else(|error| {
                    panic!("cannot make level {level} beyond PATH_MAX: {error}")
                });
        }
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        rustix::fs::openat(&at, "bottom", flags, Mode::from_raw_mode(0o640))
            .and_then(|fd| rustix::io::write(&fd, b"beyond"))
            .and_then(|_| rustix::fs::symlinkat("bottom", &at, "link"))
            .unwrap_or_else(|error| panic!("cannot write beyond PATH_MAX: {error}"));
    }

    fn attributes(&self, facts: &mut ZooFacts) {
        self.dir("attributes");
        let big: Vec<u8> = (0..3000u32).map(|n| (n % 251) as u8).collect();
        for path in [
            self.file("attributes/file", "with attributes"),
            self.dir("attributes/dir"),
        ] {
            set_xattr(&path, "user.escrow.small", b"value");
            set_xattr(&path, "user.escrow.big", &big);
            set_xattr(&path, "user.escrow.empty", b"");
            set_xattr(&path, "user.escrow.binary", b"\0\xff\n\0");
            set_xattr(&path, "user.escrow.odd name \u{e9}=", b"odd name");
        }
        let file = self.file("attributes/acl-file", "with an ACL");
        let dir = self.dir("attributes/acl-dir");
        facts.acls = set_acl(&["-m", "u:12345:rw-,g:23456:r--"], &file);
        if facts.acls {
            assert!(
                set_acl(&["-m", "u:12345:r-x"], &dir),
                "files take ACLs here, directories not"
            );
            assert!(
                set_acl(&["-d", "-m", "u:12345:rwx,g::r-x"], &dir),
                "files take ACLs here, directories not"
            );
            self.file("attributes/acl-dir/inherits", "made below a default ACL");
        }
        if is_root() {
            let file = self.file("attributes/trusted", "only root sees it");
            set_xattr(&file, "trusted.escrow.mark", b"trusted value");
            self.symlink("trusted", "attributes/trusted-link");
            set_xattr(
                &self.at("attributes/trusted-link"),
                "trusted.escrow.link",
                b"on a symlink",
            );
        }
    }

    fn owners(&self) {
        if !is_root() {
            return;
        }
        self.file("owned-file", "owned by 12345:23456");
        self.dir("owned-dir");
        self.file("owned-dir/child", "in a directory of 12345:23456");
        self.symlink("owned-file", "owned-link");
        for name in ["owned-file", "owned-dir", "owned-link"] {
            std::os::unix::fs::lchown(self.at(name), Some(12345), Some(23456)).unwrap_or_else(
                |error| panic!("cannot chown {name} in {}: {error}", self.root.display()),
            );
        }
    }

    /// After everything else: directories become read-only here, and a chown or a write would clear some bits.
    fn modes(&self, facts: &mut ZooFacts) {
        self.dir("modes");
        let mut modes = vec![0o400, 0o444, 0o600, 0o751, 0o1644, 0o2755, 0o4755, 0o6711];
        if is_root() {
            modes.push(0);
            let name = "modes/capable";
            // cap_net_bind_service+ep, as the kernel stores it: revision 2, permitted bit 10, effective.
            let mut value = [0; 20];
            value[..4].copy_from_slice(&0x0200_0001u32.to_le_bytes());
            value[4..8].copy_from_slice(&(1u32 << 10).to_le_bytes());
            set_xattr(
                &self.file(name, "may bind low ports"),
                "security.capability",
                &value,
            );
            facts.privileged.push(name.into());
        }
        for mode in modes {
            let name = format!("modes/file-{mode:04o}");
            chmod(&self.file(&name, format!("mode {mode:04o}")), mode);
            if mode & 0o6000 != 0 {
                facts.privileged.push(name.into());
            }
        }
        for mode in [0o700, 0o1777, 0o2755, 0o555] {
            let name = format!("modes/dir-{mode:04o}");
            let dir = self.dir(&name);
            self.file(format!("{name}/inside"), "a file inside");
            chmod(&dir, mode);
        }
    }
}

fn chmod(path: &Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode))
        .unwrap_or_else(|error| panic!("cannot chmod {} to {mode:o}: {error}", path.display()));
}

fn set_xattr(path: &Path, name: &str, value: &[u8]) {
    rustix::fs::lsetxattr(path, name, value, XattrFlags::empty())
        .unwrap_or_else(|error| panic!("cannot set {name} on {}: {error}", path.display()));
}

/// False where the file system has no ACLs; panics on any other failure.
fn set_acl(args: &[&str], path: &Path) -> bool {
    let mut command = Command::new("setfacl");
    command.args(args).arg("--").arg(path).env("LC_ALL", "C");
    let output = process::run(command, b"");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success() || stderr.contains("not supported"),
        "setfacl {args:?} {} failed: {stderr}",
        path.display()
    );
    output.status.success()
}
