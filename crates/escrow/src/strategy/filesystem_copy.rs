//! `filesystem_copy`: a full, faithful copy. Works everywhere; the others are compared with it.

use std::path::Path;

use super::Probe;
use super::copy::{CopyKind, TreeCopy};
use crate::fs::content::Reflinks;
use crate::fs::place::CopyReport;

pub(super) struct FullCopy;

pub(super) type FilesystemCopy = TreeCopy<FullCopy>;

impl CopyKind for FullCopy {
    const NAME: &'static str = "filesystem_copy";
    const STRENGTH: u8 = 4;

    fn reflinks() -> Reflinks {
        Reflinks::never()
    }

    fn probe(_original: &Path, _area: &Path) -> Probe {
        Probe::yes("a full copy works on every file system")
    }

    fn message(report: &CopyReport) -> String {
        match report.entries {
            1 => "copied 1 entry".to_owned(),
            entries => format!("copied {entries} entries"),
        }
    }
}
