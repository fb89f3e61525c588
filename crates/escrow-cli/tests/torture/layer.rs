//! A layer of an overlay as the kernel left it, kept in memory, and put into any number of new sandboxes.

use std::collections::HashMap;
use std::fs::{self, Permissions};
use std::io::Result;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, FileType, Mode, Timespec, Timestamps, XattrFlags};

/// What stands at one path.
enum What {
    Dir,
    File(Vec<u8>),
    Link(PathBuf),
    Whiteout,
    /// Another name for an entry before it.
    Same(PathBuf),
}

struct Entry {
    path: PathBuf,
    what: What,
    marks: Vec<(Vec<u8>, Vec<u8>)>,
    mode: u32,
    modified: (i64, i64),
}

/// Everything in a layer, parents first.
pub(crate) struct Layer {
    entries: Vec<Entry>,
}

impl Layer {
    /// Takes in the layer at `root`.
    pub(crate) fn read(root: &Path) -> Self {
        let mut layer = Self {
            entries: Vec::new(),
        };
        layer
            .take(root, PathBuf::new(), &mut HashMap::new())
            .unwrap_or_else(|error| panic!("cannot read the layer {}: {error}", root.display()));
        layer
    }

    fn take(
        &mut self,
        root: &Path,
        path: PathBuf,
        links: &mut HashMap<u64, PathBuf>,
    ) -> Result<()> {
        let source = root.join(&path);
        let meta = fs::symlink_metadata(&source)?;
        let kind = meta.file_type();
        let first = match kind.is_dir() {
            true => None,
            false => links.insert(meta.ino(), path.clone()),
        };
        let what = match first {
            Some(first) => What::Same(first),
            None if kind.is_dir() => What::Dir,
            None if kind.is_symlink() => What::Link(fs::read_link(&source)?),
            None if kind.is_char_device() => What::Whiteout,
            None => What::File(fs::read(&source)?),
        };
        // The marks of the top are those of its own sandbox.
        let marked = kind.is_file() || kind.is_dir() && !path.as_os_str().is_empty();
        self.entries.push(Entry {
            path: path.clone(),
            what,
            marks: match marked {
                true => marks(&source)?,
                false => Vec::new(),
            },
            mode: meta.mode() & 0o7777,
            modified: (meta.mtime(), meta.mtime_nsec()),
        });
        if kind.is_dir() {
            let names = fs::read_dir(&source)?.map(|entry| Ok(entry?.file_name()));
            let mut names = names.collect::<Result<Vec<_>>>()?;
            names.sort();
            for name in names {
                self.take(root, path.join(name), links)?;
            }
        }
        Ok(())
    }

    /// Puts it into the new, empty layer at `root`.
    pub(crate) fn write(&self, root: &Path) {
        self.put(root)
            .unwrap_or_else(|error| panic!("cannot fill the layer {}: {error}", root.display()));
    }

    fn put(&self, root: &Path) -> Result<()> {
        for Entry { path, what, .. } in &self.entries {
            let target = root.join(path);
            match what {
                What::Dir if path.as_os_str().is_empty() => {}
                What::Dir => fs::create_dir(&target)?,
                What::File(bytes) => fs::write(&target, bytes)?,
                What::Link(to) => symlink(to, &target)?,
                What::Whiteout => {
                    let (kind, mode) = (FileType::CharacterDevice, Mode::empty());
                    rustix::fs::mknodat(CWD, &target, kind, mode, 0)?;
                }
                What::Same(first) => fs::hard_link(root.join(first), &target)?,
            }
        }
        // Backwards: the times of a directory move with what is put into it.
        for entry in self.entries.iter().rev() {
            let target = root.join(&entry.path);
            for (name, value) in &entry.marks {
                rustix::fs::setxattr(&target, name.as_slice(), value, XattrFlags::empty())?;
            }
            if matches!(entry.what, What::Dir | What::File(_)) {
                fs::set_permissions(&target, Permissions::from_mode(entry.mode))?;
            }
            let (seconds, nanoseconds) = entry.modified;
            let time = Timespec {
                tv_sec: seconds,
                tv_nsec: nanoseconds,
            };
            let times = Timestamps {
                last_access: time,
                last_modification: time,
            };
            rustix::fs::utimensat(CWD, &target, &times, AtFlags::SYMLINK_NOFOLLOW)?;
        }
        Ok(())
    }
}

fn marks(path: &Path) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
    let mut names = vec![0; 4096];
    let length = rustix::fs::listxattr(path, &mut names[..])?;
    let mut found = Vec::new();
    for name in names[..length].split(|byte| *byte == 0) {
        if name.is_empty() {
            continue;
        }
        let mut value = vec![0; 4096];
        let length = rustix::fs::getxattr(path, name, &mut value[..])?;
        found.push((name.to_vec(), value[..length].to_vec()));
    }
    Ok(found)
}
