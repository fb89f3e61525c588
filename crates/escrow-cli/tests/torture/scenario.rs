//! What the originals hold, what is changed in their sandboxes, and what must come out.
//!
//! Promise: the engine has no part in it. The state after a commit is made by the same edits, with the plain means of
//! the file system, in a plain directory. Every time that an edit moves is then set to a value of its own, here and
//! there, so that the whole state can be compared, times of directories included.

use std::os::unix::fs::chown;

use rustix::fs::{AtFlags, CWD, Timespec, Timestamps, XattrFlags};

use crate::*;

/// How one resource is sandboxed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Kind {
    Copy,
    Cow,
    Overlay,
    /// On btrfs only.
    Snapshot,
    /// A copy of what lies in the lower layer of an overlay file system, as in a container. For root only.
    Container,
    None,
}

impl Kind {
    /// The word for the command line.
    pub(crate) fn strategy(self) -> &'static str {
        match self {
            Self::Copy | Self::Container => "filesystem_copy",
            Self::Cow => "copy_on_write",
            Self::Overlay => "overlay",
            Self::Snapshot => "snapshot",
            Self::None => "none",
        }
    }

    pub(crate) fn short(self) -> &'static str {
        match self {
            Self::Copy => "copy",
            Self::Cow => "cow",
            Self::Overlay => "overlay",
            Self::Snapshot => "snapshot",
            Self::Container => "container",
            Self::None => "none",
        }
    }
}

/// How much there is in each resource.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Size {
    /// One file of each basic kind of change: for what is quadratic.
    Tiny,
    /// Every kind of change.
    Full,
}

/// A plan to be committed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Scenario {
    pub(crate) members: &'static [Kind],
    pub(crate) size: Size,
    /// The last member refuses one of its changes for good, so that the commit must be taken back.
    pub(crate) refuses: bool,
}

impl Scenario {
    pub(crate) const fn full(members: &'static [Kind]) -> Self {
        Self {
            members,
            size: Size::Full,
            refuses: false,
        }
    }

    pub(crate) const fn tiny(members: &'static [Kind]) -> Self {
        Self {
            size: Size::Tiny,
            ..Self::full(members)
        }
    }

    pub(crate) const fn refusing(members: &'static [Kind]) -> Self {
        Self {
            refuses: true,
            ..Self::full(members)
        }
    }

    pub(crate) fn name(&self) -> String {
        let members: Vec<&str> = self.members.iter().map(|kind| kind.short()).collect();
        let mut name = members.join("+");
        if self.size == Size::Tiny {
            name.push_str(" (tiny)");
        }
        if self.refuses {
            name.push_str(" (refused)");
        }
        name
    }

    pub(crate) fn has_none(&self) -> bool {
        self.members.contains(&Kind::None)
    }
}

const TINY: &str = "modify.txt 0640 \"old content of @\\n\"\ngone.txt \"goes from @\\n\"\nsub/\n";

const FULL: &str = r#"
keep.txt "kept in @\n"
modify.txt 0640 "old content of @\n"
gone.txt "goes from @\n"
mode.txt 0644 "its mode changes in @\n"
marked.txt "its mark changes\n"
owned.txt "its owner changes\n"
link -> keep.txt
pair-a "linked in @\n"
pair-b = pair-a
twin-a "linked and changed in @\n"
twin-b = twin-a
file-to-dir "was a file of @\n"
dir-to-file/ 0750
dir-to-file/inner "inner of @\n"
dir-mode/ 0755
dir-mode/stays "stays in @\n"
doomed/
doomed/one "1 of @\n"
doomed/deep/two 0600 "2 of @\n"
empty-gone/
sub/ 0711
sub/nested/
sub/nested/leaf.txt "leaf of @\n"
sub/quiet.txt "quiet\n"
tool 0755 "a tool of @\n"
"#;

/// The file that a member which refuses does not released.
pub(crate) const REFUSED: &str = "modify.txt";

/// Long ago, and different for each entry.
const OLD_TIMES: i64 = 1_000_000_000;
pub(crate) const NEW_TIMES: i64 = 1_500_000_000;

/// Sets the time of an entry itself, not of what a link points to.
pub(crate) fn set_time(path: &Path, seconds: i64) {
    let time = |seconds| Timespec {
        tv_sec: seconds,
        tv_nsec: 123_456_789,
    };
    let times = Timestamps {
        last_access: time(seconds),
        last_modification: time(seconds),
    };
    rustix::fs::utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW)
        .unwrap_or_else(|error| panic!("cannot set the time of {}: {error}", path.display()));
}

pub(crate) fn set_attribute(path: &Path, name: &str, value: &[u8]) {
    rustix::fs::setxattr(path, name, value, XattrFlags::empty())
        .unwrap_or_else(|error| panic!("cannot set {name} of {}: {error}", path.display()));
}

/// Every path of a small tree, parents first.
fn paths(root: &Path) -> Vec<PathBuf> {
    let mut found = vec![root.to_owned()];
    let mut at = 0;
    while at < found.len() {
        let path = found[at].clone();
        at += 1;
        let meta = fs::symlink_metadata(&path);
        if !meta.is_ok_and(|meta| meta.is_dir()) {
            continue;
        }
        let entries = fs::read_dir(&path)
            .unwrap_or_else(|error| panic!("cannot list {}: {error}", path.display()));
        let mut below: Vec<_> = entries
            .map(|entry| entry.expect("a listed entry can be read").path())
            .collect();
        below.sort();
        found.extend(below);
    }
    found
}

/// Makes the original of one member; `label` tells its contents from those of the others.
pub(crate) fn build(root: &Path, size: Size, label: &str) {
    let text = match size {
        Size::Tiny => TINY,
        Size::Full => FULL,
    };
    tree::build(root, &text.replace('@', label));
    if size == Size::Full {
        set_attribute(&root.join("marked.txt"), "user.colour", b"blue");
        set_attribute(&root.join("dir-mode"), "user.shape", b"round");
    }
    for (number, path) in (0..).zip(paths(root)) {
        set_time(&path, OLD_TIMES + 1000 * number);
    }
}

/// Where the changes are made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Where {
    /// In a copy.
    Copy,
    /// In a layer over the original. A file of two names that is changed there becomes two files, and owners cannot
    /// be given away.
    Layer,
    /// In a plain directory, to see what must come out of one of these.
    Outcome(Kind),
}

/// Makes every change below `root`.
pub(crate) fn edit(root: &Path, size: Size, label: &str, place: Where) -> std::io::Result<()> {
    let layered = matches!(place, Where::Layer | Where::Outcome(Kind::Overlay));
    let at = |path: &str| root.join(path);
    let text = format!("new and longer content of {label}\n");
    write(at("modify.txt"), text);
    fs::remove_file(at("gone.txt"))?;
    write(at("sub/added.txt"), added(label));
    let mut touched = vec!["", "modify.txt", "sub", "sub/added.txt"];
    if size == Size::Full {
        write(at("sub/nested/leaf.txt"), "another leaf\n");
        fs::create_dir_all(at("new/dir/empty"))?;
        write(at("new/dir/deep.txt"), format!("deep in {label}\n"));
        chmod(at("new/dir"), 0o700);
        fs::create_dir(at("empty-new"))?;
        fs::remove_dir_all(at("doomed"))?;
        fs::remove_dir(at("empty-gone"))?;
        chmod(at("mode.txt"), 0o600);
        chmod(at("dir-mode"), 0o700);
        set_attribute(&at("marked.txt"), "user.colour", b"red");
        set_attribute(&at("dir-mode"), "user.shape", b"square");
        fs::remove_file(at("file-to-dir"))?;
        fs::create_dir(at("file-to-dir"))?;
        write(at("file-to-dir/in"), "now in a directory\n");
        fs::remove_dir_all(at("dir-to-file"))?;
        write(at("dir-to-file"), "now a file\n");
        fs::remove_file(at("link"))?;
        symlink("sub/added.txt", at("link"));
        fs::hard_link(at("pair-a"), at("pair-c"))?;
        if layered {
            fs::remove_file(at("twin-a"))?;
        } else if is_root() {
            chown(at("owned.txt"), Some(12_345), Some(54_321))?;
        }
        write(at("twin-a"), format!("twins of {label}\n"));
        write(at("fresh-a"), "fresh\n");
        fs::hard_link(at("fresh-a"), at("fresh-b"))?;
        // A commit does not carry more power over: such a file is copied instead of linked.
        write(at("tool"), format!("a sharper tool of {label}\n"));
        match place {
            Where::Copy | Where::Layer => chmod(at("tool"), 0o4755),
            Where::Outcome(_) => chmod(at("tool"), 0o755),
        }
        touched.extend([
            "tool",
            "sub/nested/leaf.txt",
            "new",
            "new/dir",
            "new/dir/empty",
            "new/dir/deep.txt",
            "empty-new",
            "file-to-dir",
            "file-to-dir/in",
            "dir-to-file",
            "link",
            "twin-a",
            "fresh-a",
        ]);
    }
    // `add_again` knows these.
    for (number, path) in (0..).zip(&touched) {
        set_time(&root.join(path), NEW_TIMES + 1000 * number);
    }
    Ok(())
}

/// Makes one added file anew, whatever became of it, so that it is not on disk yet. `root` is a copy or a layer.
pub(crate) fn add_again(root: &Path, label: &str) -> std::io::Result<()> {
    let (dir, file) = (root.join("sub"), root.join("sub/added.txt"));
    if file.exists() {
        fs::remove_file(&file)?;
    }
    fs::write(&file, added(label))?;
    set_time(&file, NEW_TIMES + 3000);
    set_time(&dir, NEW_TIMES + 2000);
    Ok(())
}

fn added(label: &str) -> String {
    format!("added to {label}\n")
}

/// Both states of one member.
#[derive(Debug)]
pub(crate) struct Sides {
    pub(crate) old: Sig,
    pub(crate) new: Sig,
}

/// What a member must be before and after, found out without the engine.
pub(crate) fn sides(size: Size, label: &str, kind: Kind) -> Sides {
    let world = World::new();
    let root = world.dir("plain");
    build(&root, size, label);
    let old = signature(&root);
    edit(&root, size, label, Where::Outcome(kind))
        .unwrap_or_else(|error| panic!("cannot edit {}: {error}", root.display()));
    let new = signature(&root);
    Sides { old, new }
}
