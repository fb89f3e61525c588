//! The binary encoding of records: fixed-width little-endian numbers, texts with their length.

use super::xattr::Xattrs;
use super::{Fingerprint, Stamp};
use crate::model::text::Location;
use crate::model::{EntryKind, ResourcePath};

/// Bytes that are still to be decoded.
pub(crate) struct RecordBytes<'a>(pub(crate) &'a [u8]);

impl<'a> RecordBytes<'a> {
    fn next(&mut self, length: usize) -> Option<&'a [u8]> {
        let (next, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(next)
    }
}

/// A value as a part of a record.
pub(crate) trait RecordField: Sized {
    fn put(&self, to: &mut Vec<u8>);

    /// `None` where the bytes are none of these.
    fn take(from: &mut RecordBytes<'_>) -> Option<Self>;
}

macro_rules! number {
    ($($of:ty),*) => {$(
        impl RecordField for $of {
            fn put(&self, to: &mut Vec<u8>) {
                to.extend_from_slice(&self.to_le_bytes());
            }

            fn take(from: &mut RecordBytes<'_>) -> Option<Self> {
                let bytes = from.next(size_of::<Self>())?;
                Some(Self::from_le_bytes(bytes.try_into().ok()?))
            }
        }
    )*};
}

number!(u8, u16, u32, u64, i64);

/// A structure as its fields, one after the other.
macro_rules! fields {
    ($of:ident { $($field:ident),* }) => {
        impl $crate::fs::codec::RecordField for $of {
            fn put(&self, to: &mut Vec<u8>) {
                $($crate::fs::codec::RecordField::put(&self.$field, to);)*
            }

            fn take(from: &mut $crate::fs::codec::RecordBytes<'_>) -> Option<Self> {
                $(let $field = $crate::fs::codec::RecordField::take(from)?;)*
                Some(Self { $($field),* })
            }
        }
    };
}
pub(crate) use fields;

fields!(Stamp { sec, nsec });
fields!(Fingerprint {
    kind,
    ino,
    born,
    size,
    mtime,
    ctime,
    mode,
    owner
});
/// One of a few, by its place among them.
macro_rules! choice {
    ($of:ident: $($one:ident),*) => {
        impl RecordField for $of {
            fn put(&self, to: &mut Vec<u8>) {
                let all = [$(Self::$one),*];
                let place = all.iter().position(|one| one == self);
                to.push(place.unwrap_or(all.len()) as u8);
            }

            fn take(from: &mut RecordBytes<'_>) -> Option<Self> {
                let all = [$(Self::$one),*];
                all.get(usize::from(u8::take(from)?)).copied()
            }
        }
    };
}

choice!(EntryKind: File, Directory, Symlink, Fifo, Socket, Device);

impl RecordField for bool {
    fn put(&self, to: &mut Vec<u8>) {
        to.push(u8::from(*self));
    }

    fn take(from: &mut RecordBytes<'_>) -> Option<Self> {
        Some(u8::take(from)? != 0)
    }
}

impl<A: RecordField, B: RecordField> RecordField for (A, B) {
    fn put(&self, to: &mut Vec<u8>) {
        self.0.put(to);
        self.1.put(to);
    }

    fn take(from: &mut RecordBytes<'_>) -> Option<Self> {
        Some((A::take(from)?, B::take(from)?))
    }
}

impl<T: RecordField> RecordField for Option<T> {
    fn put(&self, to: &mut Vec<u8>) {
        self.is_some().put(to);
        if let Some(value) = self {
            value.put(to);
        }
    }

    fn take(from: &mut RecordBytes<'_>) -> Option<Self> {
        match bool::take(from)? {
            true => Some(Some(T::take(from)?)),
            false => Some(None),
        }
    }
}

/// A text or a list, with its length before it.
fn put_length(length: usize, to: &mut Vec<u8>) {
    u32::try_from(length).unwrap_or(u32::MAX).put(to);
}

fn put_text(text: &[u8], to: &mut Vec<u8>) {
    put_length(text.len(), to);
    to.extend_from_slice(text);
}

fn take_text<'a>(from: &mut RecordBytes<'a>) -> Option<&'a [u8]> {
    let length = usize::try_from(u32::take(from)?).ok()?;
    from.next(length)
}

impl RecordField for ResourcePath {
    fn put(&self, to: &mut Vec<u8>) {
        put_text(self.as_bytes(), to);
    }

    fn take(from: &mut RecordBytes<'_>) -> Option<Self> {
        match take_text(from)? {
            b"" => Some(Self::root()),
            text => Self::parse(text).ok(),
        }
    }
}

impl RecordField for Location {
    fn put(&self, to: &mut Vec<u8>) {
        put_text(self.as_bytes(), to);
    }

    fn take(from: &mut RecordBytes<'_>) -> Option<Self> {
        take_text(from).map(Self::from_bytes)
    }
}

impl RecordField for super::xattr::Digest {
    fn put(&self, to: &mut Vec<u8>) {
        to.extend_from_slice(self);
    }

    fn take(from: &mut RecordBytes<'_>) -> Option<Self> {
        from.next(size_of::<Self>())?.try_into().ok()
    }
}

impl RecordField for Vec<Vec<u8>> {
    fn put(&self, to: &mut Vec<u8>) {
        put_length(self.len(), to);
        self.iter().for_each(|text| put_text(text, to));
    }

    fn take(from: &mut RecordBytes<'_>) -> Option<Self> {
        let length = u32::take(from)?;
        (0..length)
            .map(|_| Some(take_text(from)?.to_vec()))
            .collect()
    }
}

impl RecordField for Xattrs {
    fn put(&self, to: &mut Vec<u8>) {
        put_length(self.len(), to);
        for (name, value) in self {
            put_text(name, to);
            put_text(value, to);
        }
    }

    fn take(from: &mut RecordBytes<'_>) -> Option<Self> {
        let length = u32::take(from)?;
        let mut one = || Some((take_text(from)?.to_vec(), take_text(from)?.to_vec()));
        (0..length).map(|_| one()).collect()
    }
}
