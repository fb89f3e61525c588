//! The generation file: how many areas the store has recorded. A store that counts fewer has lost records.
//!
//! ```text
//! $ESCROW_HOME/generation    escrow areas 1
//!                            store 4f0c…        the identity of the store
//!                            created 2026-…     when it was made
//!                            generation 12      never smaller than what was written before
//! ```
//!
//! It is written after the record of an area and before the area. So it never counts more than the store it
//! belongs to, unless that store went back in time.

use std::fs::File;
use std::io::{Read, Write};
use std::time::Duration;

use rustix::fs::{self as sys, Mode, OFlags};
use rustix::io::Errno;

use super::dir::Dir;
use super::state_dir::DirLock;
use super::{Cause, Result};

const NAME: &[u8] = b"generation";
const UNFINISHED: &[u8] = b"generation.new";
const HEAD: &str = "escrow areas 1";

/// How long one writer waits for another.
const PATIENCE: Duration = Duration::from_secs(20);

/// Which store made the areas of a home, and how many it had recorded by then.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Generation {
    /// The identity of the store.
    pub store: String,
    /// When the store was made.
    pub created: String,
    /// The number of its last record of an area.
    pub number: u64,
}

impl Generation {
    fn parse(text: &str) -> Option<Self> {
        let mut lines = text.lines();
        let mut field = |name: &str| {
            let line = lines.next()?;
            line.strip_prefix(name)?
                .strip_prefix(' ')
                .map(str::to_owned)
        };
        field("escrow").filter(|rest| HEAD.ends_with(rest.as_str()))?;
        Some(Self {
            store: field("store")?,
            created: field("created")?,
            number: field("generation")?.parse().ok()?,
        })
    }

    fn text(&self) -> String {
        let Self {
            store,
            created,
            number,
        } = self;
        format!("{HEAD}\nstore {store}\ncreated {created}\ngeneration {number}\n")
    }

    /// What lies in a home; `None` where no area was made yet, or by a version that did not count.
    pub fn read(home: &Dir) -> Result<Option<Self>> {
        let file = match home.file(NAME) {
            Err(error) if error.is_absent() => return Ok(None),
            file => file?.0,
        };
        let mut text = String::with_capacity(4096);
        let read = file.take(4096).read_to_string(&mut text);
        let why = "it is damaged; remove it to use the state as it is";
        match read.ok().and_then(|_| Self::parse(&text)) {
            Some(found) => Ok(Some(found)),
            None => Err(home.error("use", NAME, Cause::Damaged(why))),
        }
    }

    /// Writes it, unless a later one is there. The file is wholly old or wholly new, also after a power cut; that may
    /// bring the old one back, which says less, and never more, than is true.
    pub fn raise(&self, home: &Dir) -> Result<()> {
        // Opened anew: a lock belongs to what was opened, and with another handle to the same it would outlive this.
        let own = Dir::open(home.path())?;
        let Some(_lock) = DirLock::take(own, false, PATIENCE, |_| ())? else {
            return Err(home.error("lock", b"", Cause::Os(Errno::WOULDBLOCK)));
        };
        let there = Self::read(home)?;
        let later = |there: &Self| there.store == self.store && there.number >= self.number;
        if there.as_ref().is_some_and(later) {
            return Ok(());
        }
        let flags =
            OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fail = |errno| home.error("write", UNFINISHED, Cause::Os(errno));
        let file = sys::openat(home, UNFINISHED, flags, Mode::RUSR | Mode::WUSR).map_err(fail)?;
        let mut file = File::from(file);
        let written = file.write_all(self.text().as_bytes());
        let io = |error: std::io::Error| fail(Errno::from_io_error(&error).unwrap_or(Errno::IO));
        written.and_then(|()| file.sync_all()).map_err(io)?;
        home.rename(UNFINISHED, home, NAME)?;
        match there {
            None => home.sync(),
            Some(_) => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_and_nothing_else() {
        let one = Generation {
            store: "ab12".to_owned(),
            created: "2026-01-02T03:04:05Z".to_owned(),
            number: 7,
        };
        assert_eq!(Generation::parse(&one.text()), Some(one.clone()));
        for text in ["", "escrow areas 1\n", "escrow areas 2\nstore a\n", "x"] {
            assert_eq!(Generation::parse(text), None, "{text}");
        }
        let torn = one.text().replace("generation 7", "generation ");
        assert_eq!(Generation::parse(&torn), None);
    }
}
