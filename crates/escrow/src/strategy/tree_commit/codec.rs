//! The binary encoding of what intent records hold.

use super::intent::IntentEntry;
use super::{DirMetadata, DirUpdate, KeptLink};
use crate::fs::codec::{RecordBytes, RecordField, fields};

fields!(IntentEntry {
    path,
    old,
    new,
    linked,
    marks
});
fields!(KeptLink { path, to, file });
fields!(DirUpdate {
    path,
    seen,
    before,
    after,
    known
});

/// As wide with a time as without: `finish` learns it.
impl RecordField for DirMetadata {
    fn put(&self, to: &mut Vec<u8>) {
        self.mode.put(to);
        self.owner.put(to);
        self.mtime.is_some().put(to);
        self.mtime.unwrap_or_default().put(to);
        self.xattrs.put(to);
    }

    fn take(from: &mut RecordBytes<'_>) -> Option<Self> {
        Some(Self {
            mode: RecordField::take(from)?,
            owner: RecordField::take(from)?,
            mtime: {
                let (known, mtime) = RecordField::take(from)?;
                Some(mtime).filter(|_| known)
            },
            xattrs: RecordField::take(from)?,
        })
    }
}
