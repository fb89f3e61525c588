//! A path inside a resource: relative, bytes, valid by construction.
//!
//! A [`ResourcePath`] guarantees that it cannot climb out by its words (rule S1);
//! that no link leads out either is checked by the kernel when it is opened.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::text;

/// The longest name a file system here takes.
const NAME_MAX: usize = 255;

/// Why a text is no path inside a resource.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("'{path}' is not a path inside a resource: {why}")]
pub struct InvalidPath {
    /// The text, escaped.
    pub path: String,
    /// What is wrong with it.
    pub why: &'static str,
}

/// A relative path whose parts are plain names; the empty one is the resource itself.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct ResourcePath(Box<[u8]>);

impl ResourcePath {
    /// The resource itself.
    pub fn root() -> Self {
        Self::default()
    }

    /// Reads what a caller typed. `.` parts and doubled slashes are dropped; `..`, a leading
    /// slash, NUL and over-long names are refused.
    pub fn parse(typed: &[u8]) -> Result<Self, InvalidPath> {
        let refuse = |why| {
            Err(InvalidPath {
                path: text::escape(typed),
                why,
            })
        };
        if typed.is_empty() {
            return refuse("it is empty");
        }
        if typed[0] == b'/' {
            return refuse("it is absolute; give it relative to the resource");
        }
        if typed.contains(&0) {
            return refuse("it contains a NUL byte");
        }
        let mut path = Vec::with_capacity(typed.len());
        for part in typed.split(|byte| *byte == b'/') {
            match part {
                b"" | b"." => continue,
                b".." => return refuse("it contains '..'"),
                _ if part.len() > NAME_MAX => return refuse("a name in it is over 255 bytes long"),
                _ => {}
            }
            if !path.is_empty() {
                path.push(b'/');
            }
            path.extend_from_slice(part);
        }
        Ok(Self(path.into()))
    }

    /// The path of `name` in the directory that this path names.
    ///
    /// `name` comes from the kernel (a directory listing) or from [`parts`](Self::parts), so it
    /// is one plain name.
    pub fn join(&self, name: &[u8]) -> Self {
        debug_assert!(!name.is_empty() && !name.contains(&b'/') && name != b".." && name != b".");
        if self.is_root() {
            return Self(name.into());
        }
        let mut path = Vec::with_capacity(self.0.len() + 1 + name.len());
        path.extend_from_slice(&self.0);
        path.push(b'/');
        path.extend_from_slice(name);
        Self(path.into())
    }

    /// Whether this is the resource itself.
    pub fn is_root(&self) -> bool {
        self.0.is_empty()
    }

    /// The bytes, without a leading slash; empty for the root.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// The names from the root down.
    pub fn parts(&self) -> impl DoubleEndedIterator<Item = &[u8]> {
        self.0
            .split(|byte| *byte == b'/')
            .filter(|part| !part.is_empty())
    }

    /// Whether this is `other`, or lies somewhere below it.
    pub fn lies_in(&self, other: &Self) -> bool {
        match self.0.strip_prefix(&*other.0) {
            Some(rest) => other.is_root() || rest.is_empty() || rest[0] == b'/',
            None => false,
        }
    }

    /// The directories it lies in, nearest first, without the resource itself.
    pub fn ancestors(&self) -> impl Iterator<Item = Self> {
        let parent = |path: &Self| path.split().map(|(parent, _)| parent);
        std::iter::successors(parent(self), parent).filter(|path| !path.is_root())
    }

    /// The directory this lies in and its own name; `None` for the root.
    pub fn split(&self) -> Option<(Self, &[u8])> {
        let (parent, name) = self.split_names()?;
        Some((Self(parent.into()), name))
    }

    /// The same as bytes, the parent of which is empty for the root.
    pub fn split_names(&self) -> Option<(&[u8], &[u8])> {
        let slash = self.0.iter().rposition(|byte| *byte == b'/');
        match (self.is_root(), slash) {
            (true, _) => None,
            (false, Some(slash)) => Some((&self.0[..slash], &self.0[slash + 1..])),
            (false, None) => Some((b"", &self.0)),
        }
    }
}

impl fmt::Display for ResourcePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_root() {
            return f.write_str(".");
        }
        f.write_str(&text::escape(&self.0))
    }
}

impl fmt::Debug for ResourcePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "'{self}'")
    }
}

impl Serialize for ResourcePath {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for ResourcePath {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let typed = String::deserialize(from)?;
        let bytes =
            text::unescape(&typed).ok_or_else(|| serde::de::Error::custom("a broken escape"))?;
        Self::parse(&bytes).map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // rule S1
    #[test]
    fn what_would_leave_the_resource_is_refused() {
        for typed in [
            &b"../x"[..],
            b"a/../../x",
            b"/etc/passwd",
            b"",
            b"a\0b",
            b"..",
            b"a/..",
        ] {
            assert!(
                ResourcePath::parse(typed).is_err(),
                "{}",
                text::escape(typed)
            );
        }
        assert!(ResourcePath::parse(&[b'a'; 256]).is_err());
        assert!(ResourcePath::parse(&[b'a'; 255]).is_ok());
    }

    // rule F5
    #[test]
    fn names_are_bytes() {
        let path = ResourcePath::parse(b"./a//-\n\xff/...").expect("odd but plain names");
        assert_eq!(path.as_bytes(), b"a/-\n\xff/...");
        let (parent, name) = path.split().expect("it is not the root");
        assert_eq!((parent.as_bytes(), name), (&b"a/-\n\xff"[..], &b"..."[..]));
        assert_eq!(parent.join(name), path);
        assert_eq!(
            ResourcePath::parse(b".").map(|path| path.is_root()),
            Ok(true)
        );
    }
}
