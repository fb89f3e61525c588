//! Edits: what an agent does to a tree, on the model and as a line of shell.

use std::collections::BTreeMap;

use super::{Model, Node, Rng};
use crate::walk::join;

/// One step of an agent.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(
    missing_docs,
    reason = "the fields of a step are what its name says they are"
)]
pub enum Edit {
    /// Writes a file, new (mode 0644) or in place.
    WriteFile { path: Vec<u8>, content: Vec<u8> },
    /// Adds to an existing file.
    Append { path: Vec<u8>, content: Vec<u8> },
    /// Removes whatever is there, with all below it.
    Delete { path: Vec<u8> },
    /// Makes a directory, mode 0755.
    MkDir { path: Vec<u8> },
    /// Moves, replacing a target as rename(2) would.
    Rename { from: Vec<u8>, to: Vec<u8> },
    /// Sets the permissions of a file or directory.
    Chmod { path: Vec<u8>, mode: u32 },
    /// Makes a symlink where nothing is.
    Symlink { path: Vec<u8>, target: Vec<u8> },
    /// Sets a `user.*` attribute of a file; the value must not be empty.
    SetXattr {
        path: Vec<u8>,
        name: String,
        value: Vec<u8>,
    },
    /// Makes an empty directory of a file, or a file with `content` of a directory.
    Retype { path: Vec<u8>, content: Vec<u8> },
    /// Sets the times to now: no change.
    Touch { path: Vec<u8> },
    /// Reads a file: no change.
    Read { path: Vec<u8> },
    /// Writes the bytes of a file over themselves: no change.
    RewriteSame { path: Vec<u8> },
}

/// Few names, so that edits meet; odd ones among them.
const NAMES: &[&[u8]] = &[
    b"a",
    b"b",
    b"dir",
    b"with space",
    b"new\nline\n",
    b"quo'te\"s",
    b"bytes-\xff\xfe",
    b"-rf",
    b"$(x);%s\\",
    b".h",
];
/// The owner can always write: otherwise what an edit does would depend on who makes it.
const FILE_MODES: &[u32] = &[0o644, 0o600, 0o755, 0o640, 0o700, 0o666];
const DIR_MODES: &[u32] = &[0o755, 0o700, 0o750, 0o1777];
const DEPTH: usize = 4;

fn parent(path: &[u8]) -> &[u8] {
    path.iter()
        .rposition(|b| *b == b'/')
        .map_or(b"", |slash| &path[..slash])
}

fn is_below(path: &[u8], dir: &[u8]) -> bool {
    path.strip_prefix(dir)
        .is_some_and(|rest| rest.starts_with(b"/"))
}

fn new_file(content: &[u8]) -> Node {
    Node::File {
        content: content.to_vec(),
        mode: 0o644,
        xattr: BTreeMap::new(),
    }
}

impl Model {
    /// Carries out an edit. False, with nothing changed, if it does not apply to this tree.
    pub fn apply(&mut self, edit: &Edit) -> bool {
        let exists = |path: &Vec<u8>| self.nodes.contains_key(path);
        let free = |path: &Vec<u8>| !path.is_empty() && !exists(path) && self.is_dir(parent(path));
        match edit {
            Edit::WriteFile { path, content } if free(path) => {
                self.nodes.insert(path.clone(), new_file(content));
            }
            Edit::WriteFile { path, content: new } => match self.nodes.get_mut(path) {
                Some(Node::File { content, .. }) => content.clone_from(new),
                _ => return false,
            },
            Edit::Append {
                path,
                content: more,
            } => match self.nodes.get_mut(path) {
                Some(Node::File { content, .. }) => content.extend_from_slice(more),
                _ => return false,
            },
            Edit::Delete { path } if exists(path) => self.remove(path),
            Edit::MkDir { path } if free(path) => {
                self.nodes.insert(path.clone(), Node::Dir { mode: 0o755 });
            }
            Edit::Rename { from, to } => return self.rename(from, to),
            Edit::Chmod { path, mode: new } => match self.nodes.get_mut(path) {
                Some(Node::File { mode, .. } | Node::Dir { mode }) => *mode = *new,
                _ => return false,
            },
            Edit::Symlink { path, target } if free(path) => {
                self.nodes.insert(
                    path.clone(),
                    Node::Link {
                        target: target.clone(),
                    },
                );
            }
            Edit::SetXattr { path, name, value } => match self.nodes.get_mut(path) {
                Some(Node::File { xattr, .. }) => {
                    xattr.insert(name.clone().into_bytes(), value.clone());
                }
                _ => return false,
            },
            Edit::Retype { path, content } => {
                let node = match self.nodes.get(path) {
                    Some(Node::File { .. }) => Node::Dir { mode: 0o755 },
                    Some(Node::Dir { .. }) => new_file(content),
                    _ => return false,
                };
                self.remove(path);
                self.nodes.insert(path.clone(), node);
            }
            Edit::Touch { path } => return exists(path),
            Edit::Read { path } | Edit::RewriteSame { path } => {
                return matches!(self.nodes.get(path), Some(Node::File { .. }));
            }
            Edit::Delete { .. } | Edit::MkDir { .. } | Edit::Symlink { .. } => return false,
        }
        true
    }

    fn remove(&mut self, path: &[u8]) {
        self.nodes
            .retain(|have, _| have != path && !is_below(have, path));
    }

    fn rename(&mut self, from: &[u8], to: &[u8]) -> bool {
        let Some(moved) = self.nodes.get(from) else {
            return false;
        };
        if to.is_empty() || from == to || is_below(to, from) || !self.is_dir(parent(to)) {
            return false;
        }
        let fits = match (matches!(moved, Node::Dir { .. }), self.nodes.get(to)) {
            (_, None) => true,
            (true, Some(Node::Dir { .. })) => !self.nodes.keys().any(|have| is_below(have, to)),
            (false, Some(Node::Dir { .. })) | (true, Some(_)) => false,
            (false, Some(_)) => true,
        };
        if fits {
            self.remove(to);
            self.nodes = std::mem::take(&mut self.nodes)
                .into_iter()
                .map(|(path, node)| match path.strip_prefix(from) {
                    Some(rest) if rest.is_empty() || rest.starts_with(b"/") => {
                        ([to, rest].concat(), node)
                    }
                    _ => (path, node),
                })
                .collect();
        }
        fits
    }
}

impl Edit {
    /// An edit that mostly applies to `model`; [`Model::apply`] says whether it does.
    pub fn random(rng: &mut Rng, model: &Model) -> Self {
        let path = if rng.one_in(3) {
            somewhere(rng, model)
        } else {
            existing(rng, model)
        };
        match rng.below(20) {
            0..=4 => Self::WriteFile {
                path: somewhere(rng, model),
                content: content(rng),
            },
            5 => Self::WriteFile {
                path,
                content: content(rng),
            },
            6 => Self::Append {
                path,
                content: content(rng),
            },
            7 | 8 => Self::Delete { path },
            9 | 10 => Self::MkDir {
                path: somewhere(rng, model),
            },
            11 | 12 => {
                let to = if rng.one_in(2) {
                    existing(rng, model)
                } else {
                    somewhere(rng, model)
                };
                Self::Rename { from: path, to }
            }
            13 => {
                let modes = if model.is_dir(&path) {
                    DIR_MODES
                } else {
                    FILE_MODES
                };
                Self::Chmod {
                    path,
                    mode: rng.pick(modes),
                }
            }
            14 => {
                let target = if rng.one_in(2) {
                    existing(rng, model)
                } else {
                    rng.pick(NAMES).to_vec()
                };
                Self::Symlink {
                    path: somewhere(rng, model),
                    target,
                }
            }
            15 => {
                let name = rng.pick(&["user.one", "user.two"]).to_owned();
                // Small: all attributes of an inode share one block on ext4.
                let value = format!("v\0{:x}", rng.next_u64() >> 40).into_bytes();
                Self::SetXattr { path, name, value }
            }
            16 => Self::Retype {
                path,
                content: content(rng),
            },
            17 => Self::Touch { path },
            18 => Self::Read { path },
            _ => Self::RewriteSame { path },
        }
    }

    /// One line for `sh` that does the same in its working directory, with GNU tools, if the edit applies there. It
    /// sets the variables `p` and `q`, and the umask 022.
    pub fn to_shell(&self) -> String {
        let p = "umask 022; ";
        match self {
            Self::WriteFile { path, content } => {
                format!("{p}{} printf {} > \"$p\"", set("p", path), octal(content))
            }
            Self::Append { path, content } => {
                format!("{} printf {} >> \"$p\"", set("p", path), octal(content))
            }
            Self::Delete { path } => format!("{} rm -rf -- \"$p\"", set("p", path)),
            Self::MkDir { path } => format!("{p}{} mkdir -- \"$p\"", set("p", path)),
            Self::Rename { from, to } => {
                format!(
                    "{} {} mv -fT -- \"$p\" \"$q\"",
                    set("p", from),
                    set("q", to)
                )
            }
            Self::Chmod { path, mode } => format!("{} chmod {mode:04o} -- \"$p\"", set("p", path)),
            Self::Symlink { path, target } => {
                format!(
                    "{} {} ln -sT -- \"$q\" \"$p\"",
                    set("p", path),
                    assign("q", target)
                )
            }
            Self::SetXattr { path, name, value } => {
                let hex: String = value.iter().map(|byte| format!("{byte:02x}")).collect();
                format!("{} setfattr -n {name} -v 0x{hex} -- \"$p\"", set("p", path))
            }
            Self::Retype { path, content } => format!(
                "{p}{} if [ -d \"$p\" ]; then rm -rf -- \"$p\"; printf {} > \"$p\"; \
                 else rm -f -- \"$p\"; mkdir -- \"$p\"; fi",
                set("p", path),
                octal(content)
            ),
            Self::Touch { path } => format!("{} touch -ch -- \"$p\"", set("p", path)),
            Self::Read { path } => format!("{} cat -- \"$p\" > /dev/null", set("p", path)),
            Self::RewriteSame { path } => {
                format!(
                    "{} dd if=\"$p\" of=\"$p\" conv=notrunc status=none",
                    set("p", path)
                )
            }
        }
    }
}

/// Assigns a relative path, made safe against a leading dash.
fn set(variable: &str, path: &[u8]) -> String {
    assign(variable, &[b"./", path].concat())
}

/// Assigns any bytes but NUL. The dot keeps newlines at the end, which a substitution would drop.
fn assign(variable: &str, bytes: &[u8]) -> String {
    let dotted = octal(&[bytes, b"."].concat());
    format!("{variable}=$(printf {dotted}); {variable}=${{{variable}%.}};")
}

/// A format for printf that writes exactly these bytes.
fn octal(bytes: &[u8]) -> String {
    let mut out = String::from("'");
    for &byte in bytes {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'/' | b'.' | b'_' | b' ' => {
                out.push(char::from(byte))
            }
            _ => out.push_str(&format!("\\{byte:03o}")),
        }
    }
    out.push('\'');
    out
}

fn existing(rng: &mut Rng, model: &Model) -> Vec<u8> {
    match model.nodes.len() {
        0 => rng.pick(NAMES).to_vec(),
        count => model
            .nodes
            .keys()
            .nth(rng.below(count))
            .expect("below the count")
            .clone(),
    }
}

fn somewhere(rng: &mut Rng, model: &Model) -> Vec<u8> {
    let depth = |path: &[u8]| path.iter().filter(|b| **b == b'/').count() + 1;
    let mut dirs: Vec<&[u8]> = vec![b""];
    dirs.extend(
        model
            .nodes
            .keys()
            .map(Vec::as_slice)
            .filter(|path| model.is_dir(path) && depth(path) < DEPTH),
    );
    join(rng.pick(&dirs), rng.pick(NAMES))
}

fn content(rng: &mut Rng) -> Vec<u8> {
    let length = rng.pick(&[0, 1, 7, 40, 5000]);
    (0..length)
        .map(|_| rng.pick(b"ab%\\'\"\n\0\xff -"))
        .collect()
}
