//! The memory that a manifest of a million files takes.

use std::path::Path;

use escrow_testkit::World;

use super::LARGE;
use crate::bench::Bench;
use crate::memory::{COPY, LOAD, Peak, peak_of};
use crate::report::{Row, Section};
use crate::tree::{fill, thousands};

/// Two trees of a million empty files take about this much of the machine's memory.
const ROOM: u64 = 6 << 30;
const SHARED_MEMORY: &str = "/dev/shm";
const GOAL_MIB: f64 = 300.0;

pub(crate) fn figures(bench: &Bench) -> Section {
    let files = if bench.quick { LARGE } else { 1_000_000 };
    let (rows, reason) = match no_room(files) {
        None => (measure(bench, files), String::new()),
        Some(reason) => (Vec::new(), format!(" Not measured: {reason}.")),
    };
    Section {
        title: "Memory",
        note: format!(
            "A real tree of {} empty files in memory (tmpfs), copied by the engine in a process of its own. The peak is \
            what the kernel says of that process at its end (`VmHWM`), program and threads included.{reason}\n",
            thousands(files)
        ),
        rows,
    }
}

/// Why it cannot be measured here.
fn no_room(files: usize) -> Option<String> {
    let stat = match rustix::fs::statvfs(SHARED_MEMORY) {
        Ok(stat) => stat,
        Err(error) => return Some(format!("no {SHARED_MEMORY}: {error}")),
    };
    let wanted = files as u64 * 21 / 10;
    if stat.f_favail < wanted {
        return Some(format!(
            "{SHARED_MEMORY} has {} free inodes, {wanted} are needed",
            stat.f_favail
        ));
    }
    let available = std::fs::read_to_string("/proc/meminfo")
        .ok()
        .and_then(|text| {
            let line = text
                .lines()
                .find_map(|line| line.strip_prefix("MemAvailable:"))?;
            line.split_whitespace().next()?.parse::<u64>().ok()
        });
    match available {
        Some(kib) if kib * 1024 >= ROOM => None,
        _ => Some(format!("it needs {} GiB of free memory", ROOM >> 30)),
    }
}

fn measure(bench: &Bench, files: usize) -> Vec<Row> {
    let world = World::under(Path::new(SHARED_MEMORY));
    let (from, to) = (world.dir("from"), world.dir("to"));
    fill(&from, files, |_| 0);
    let manifest = bench.path().join("manifest");
    let copied = peak_of(COPY, &[&from, &to, &manifest]);
    let loaded = peak_of(LOAD, &[&manifest]);
    assert!(copied.entries > files, "every file is in the manifest");
    assert_eq!(copied.entries, loaded.entries, "what was written is read");
    let size = std::fs::metadata(&manifest)
        .expect("it was written above")
        .len();
    let row = |what: &str, peak: &Peak| {
        Row::counted(
            what,
            format!("{:.0} MiB", peak.mib),
            format!(
                "{} entries; {} MiB on disk",
                thousands(peak.entries),
                size >> 20
            ),
            None,
            "< 300 MiB",
            Some(peak.mib < GOAL_MIB),
        )
    };
    vec![
        row("peak while copying", &copied),
        row("peak while loading the manifest alone", &loaded),
    ]
}
