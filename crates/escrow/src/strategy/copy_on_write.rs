//! `copy_on_write`: a copy that shares its contents with the original until one of them changes.
//!
//! Where the file system cannot share (ext4, tmpfs, or an area on another file system) the probe
//! says so; asked for by name, the strategy copies and the sandbox says that it did.

use std::path::Path;

use rustix::io::Errno;

use super::Probe;
use super::copy::{CopyKind, TreeCopy};
use crate::fs::content::{Reflinks, can_share};
use crate::fs::place::CopyReport;
use crate::fs::{Cause, Dir};

pub(super) struct ReflinkCopy;

pub(super) type CopyOnWrite = TreeCopy<ReflinkCopy>;

impl CopyKind for ReflinkCopy {
    const NAME: &'static str = "copy_on_write";
    const STRENGTH: u8 = 5;

    fn reflinks() -> Reflinks {
        Reflinks::wanted()
    }

    fn probe(original: &Path, area: &Path) -> Probe {
        let tried = Dir::look(original).and_then(|original| {
            let area = Dir::open(area)?;
            if original.dev != area.meta()?.dev {
                return Ok(Probe::no(
                    "the sandbox's area is on another file system than the original, and contents are shared within one only",
                ));
            }
            can_share(&area)?;
            Ok(Probe::yes("the file system shares contents between copies (reflinks)"))
        });
        tried.unwrap_or_else(|error| match error.cause {
            Cause::Os(Errno::OPNOTSUPP | Errno::NOTTY | Errno::INVAL | Errno::NOSYS) => {
                Probe::no("the file system cannot share contents between copies (no reflinks; xfs and btrfs can)")
            }
            ref cause => Probe::no(format!("{error}: {cause}")),
        })
    }

    fn message(report: &CopyReport) -> String {
        let share = match report.shared {
            1 => "1 file shares its contents with the original".to_owned(),
            shared => format!("{shared} files share their contents with the original"),
        };
        let copied = match report.copied {
            1 => "1 file was copied in full".to_owned(),
            copied => format!("{copied} files were copied in full"),
        };
        match (report.shared, report.copied) {
            (0, 0) => "no file has contents that could be shared".to_owned(),
            (_, 0) => share,
            (0, _) => format!("this file system cannot share contents: {copied}"),
            _ => format!("{share}, {copied}"),
        }
    }
}
