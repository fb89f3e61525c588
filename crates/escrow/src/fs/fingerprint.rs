//! The fingerprint of an entry: recognizes later whether it is the same entry, in the same state.
//!
//! What makes an entry itself is its inode and when it was made; a number that was given to
//! another file since does not deceive. Its state is everything that a change would move.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};

use super::meta::{Meta, Stamp};
use crate::model::EntryKind;

/// What an entry was.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fingerprint {
    /// What it is.
    pub kind: EntryKind,
    /// Its number on the file system; zero where that may change.
    pub ino: u64,
    /// When it was made.
    pub born: Stamp,
    /// Its size.
    pub size: u64,
    /// When its content was changed.
    pub mtime: Stamp,
    /// When anything about it was changed.
    pub ctime: Stamp,
    /// Its permission bits.
    pub mode: u16,
    /// User and group.
    pub owner: (u32, u32),
}

impl From<&Meta> for Fingerprint {
    fn from(meta: &Meta) -> Self {
        Self {
            kind: meta.kind,
            ino: meta.ino,
            born: meta.born,
            size: meta.size,
            mtime: meta.mtime,
            ctime: meta.ctime,
            mode: meta.mode,
            owner: (meta.uid, meta.gid),
        }
    }
}

impl Fingerprint {
    /// What was seen, as metadata: what is not remembered is as it is `now`.
    pub fn meta(&self, now: Meta) -> Meta {
        Meta {
            kind: self.kind,
            ino: self.ino,
            born: self.born,
            size: self.size,
            mtime: self.mtime,
            ctime: self.ctime,
            mode: self.mode,
            uid: self.owner.0,
            gid: self.owner.1,
            ..now
        }
    }

    /// Whether this is the entry, whatever became of it.
    pub fn is(&self, now: &Meta) -> bool {
        if self.ino == 0 {
            return self.kind == now.kind && self.is_alike(now);
        }
        (self.kind, self.ino, self.born) == (now.kind, now.ino, now.born)
    }

    /// Whether it is the entry, and as far as anyone can set it, as it was. A directory's size and
    /// times follow what is in it, so they do not count.
    pub fn looks_the_same(&self, now: &Meta) -> bool {
        self.is(now) && self.is_alike(now)
    }

    fn is_alike(&self, now: &Meta) -> bool {
        let content = |size, mtime| match self.kind {
            EntryKind::Directory => None,
            _ => Some((size, mtime)),
        };
        content(self.size, self.mtime) == content(now.size, now.mtime)
            && (self.mode, self.owner) == (now.mode, (now.uid, now.gid))
    }

    /// The same for an entry that may get another number: it is recognized by how it looks.
    pub fn without_number(self) -> Self {
        Self { ino: 0, ..self }
    }

    /// Whether nothing at all happened to it: any change would have moved its ctime, which no program can set.
    /// Of a directory, changes to what is in it do not count.
    pub fn is_untouched(&self, now: &Meta) -> bool {
        self.looks_the_same(now) && (self.kind == EntryKind::Directory || self.ctime == now.ctime)
    }
}

/// An entry that was moved away and back by us: its content is that of `before`, although its
/// ctime says `after`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct MovedEntry {
    /// Its number on the file system.
    pub ino: u64,
    /// Its ctime before.
    pub before: Stamp,
    /// Its ctime since.
    pub after: Stamp,
}

/// Everything that we moved away and back on one file system.
#[derive(Debug, Default)]
pub struct MovedEntries(HashMap<(u64, Stamp), Stamp>);

impl MovedEntries {
    /// Whether an entry that had the ctime `then` was only moved by us since.
    pub fn leads(&self, ino: u64, now: Stamp, then: Stamp) -> bool {
        let mut ctime = now;
        while ctime != then {
            match self.0.get(&(ino, ctime)).filter(|before| **before < ctime) {
                Some(before) => ctime = *before,
                None => return false,
            }
        }
        true
    }

    /// The ctime that an entry would have if we had never moved it.
    pub fn settled(&self, ino: u64, ctime: Stamp) -> Stamp {
        let mut ctime = ctime;
        // Each move leads to the one before it, and time does not go round in circles.
        while let Some(before) = self.0.get(&(ino, ctime)).filter(|before| **before < ctime) {
            ctime = *before;
        }
        ctime
    }
}

impl FromIterator<MovedEntry> for MovedEntries {
    fn from_iter<I: IntoIterator<Item = MovedEntry>>(moved: I) -> Self {
        let pair = |one: MovedEntry| ((one.ino, one.after), one.before);
        Self(moved.into_iter().map(pair).collect())
    }
}
