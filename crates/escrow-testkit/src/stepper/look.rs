//! Looking at a stopped task: whether the call it is about to make counts, what it is about, and how to halve it.

use std::ffi::OsString;
use std::fs::{self, Metadata};
use std::io::{self, ErrorKind};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use libc::user_regs_struct;

use super::Step;
use super::calls::{About, CREATING, Call, Length, When};
use super::sys;

/// What holds for all tasks of a run.
pub(super) struct Look {
    /// Devices whose files are on no disk: those of memory files, and of proc.
    diskless: [u64; 2],
}

impl Look {
    pub(super) fn new(memory_file: &fs::File) -> io::Result<Self> {
        Ok(Self {
            diskless: [
                memory_file.metadata()?.dev(),
                fs::metadata("/proc/self")?.dev(),
            ],
        })
    }

    /// Whether the call counts.
    pub(super) fn counts(&self, tid: i32, call: &Call, registers: &user_regs_struct) -> bool {
        match call.when {
            When::InFile(place) => handle(tid, argument(registers, place))
                .is_some_and(|meta| meta.is_file() && !self.diskless.contains(&meta.dev())),
            When::CreatesHow(place) => {
                let mut flags = [0; 8];
                // What cannot be read is refused by the kernel too.
                sys::read_memory(tid, argument(registers, place), &mut flags)
                    .is_ok_and(|count| count == 8)
                    && u64::from_le_bytes(flags) & u64::from(CREATING) != 0
            }
            // The filter has looked at these.
            When::Always | When::Creates(_) | When::Clones(_) => true,
        }
    }
}

/// The call, with what it is about.
pub(super) fn step(tid: i32, call: &Call, registers: &user_regs_struct) -> Step {
    let get = |place| argument(registers, place);
    let from_here = |place| path(tid, None, get(place));
    let from = |dir, place| path(tid, Some(get(dir)), get(place));
    let [mut at, mut to] = [None, None];
    let mut file = None;
    match call.about {
        About::Nothing => {}
        About::Handle(place) => {
            at = fs::read_link(format!("/proc/{tid}/fd/{}", get(place) as i32)).ok();
            file = handle(tid, get(place)).map(|meta| (meta.dev(), meta.ino()));
        }
        About::Path(place) => at = from_here(place),
        About::At(dir, place) => at = from(dir, place),
        About::Paths(first, second) => [at, to] = [from_here(first), from_here(second)],
        About::Ats => [at, to] = [from(0, 1), from(2, 3)],
    }
    Step {
        name: call.name,
        path: at,
        to,
        file,
    }
}

/// Makes the call do half of its bytes; false, and nothing changed, where it does all or nothing.
pub(super) fn halve(tid: i32, call: &Call, registers: &mut user_regs_struct) -> bool {
    match call.length {
        Length::Whole => false,
        Length::Bytes(place) => {
            *argument_mut(registers, place) /= 2;
            true
        }
        Length::Copied { bytes, from } => {
            let size = handle(tid, argument(registers, from)).map_or(0, |meta| meta.len());
            let bytes = argument_mut(registers, bytes);
            *bytes = (*bytes).min(size) / 2;
            true
        }
        Length::Buffers => halve_buffers(tid, registers),
    }
}

/// Keeps the buffers of the first half; where the first buffer alone is longer, a plain write of half the bytes.
fn halve_buffers(tid: i32, registers: &mut user_regs_struct) -> bool {
    let count = registers.rdx.min(1024) as usize;
    let mut bytes = vec![0; count * 16];
    if !sys::read_memory(tid, registers.rsi, &mut bytes).is_ok_and(|read| read == bytes.len()) {
        return false;
    }
    let number = |at: usize| {
        bytes[at..at + 8]
            .iter()
            .rfold(0_u64, |sum, byte| sum << 8 | u64::from(*byte))
    };
    let lengths: Vec<u64> = (0..count).map(|i| number(i * 16 + 8)).collect();
    let half = lengths.iter().sum::<u64>() / 2;
    let mut sum = 0;
    let kept = lengths
        .iter()
        .take_while(|length| {
            sum += **length;
            sum <= half
        })
        .count();
    if kept > 0 || count == 0 {
        registers.rdx = kept as u64;
        return true;
    }
    // The offset stays where it is: it is the fourth argument of all that have one.
    registers.orig_rax = if registers.orig_rax == libc::SYS_writev as u64 {
        libc::SYS_write as u64
    } else {
        libc::SYS_pwrite64 as u64
    };
    [registers.rsi, registers.rdx] = [number(0), half];
    true
}

/// An argument of the call.
fn argument(registers: &user_regs_struct, place: usize) -> u64 {
    let r = registers;
    [r.rdi, r.rsi, r.rdx, r.r10, r.r8, r.r9][place]
}

fn argument_mut(registers: &mut user_regs_struct, place: usize) -> &mut u64 {
    let r = registers;
    match place {
        0 => &mut r.rdi,
        1 => &mut r.rsi,
        2 => &mut r.rdx,
        3 => &mut r.r10,
        4 => &mut r.r8,
        _ => &mut r.r9,
    }
}

/// What a handle of the task is of; `None` if it has no such handle.
fn handle(tid: i32, fd: u64) -> Option<Metadata> {
    // The kernel takes an int; the upper half of the register is not looked at.
    match fs::metadata(format!("/proc/{tid}/fd/{}", fd as i32)) {
        Ok(meta) => Some(meta),
        Err(error) if error.kind() == ErrorKind::NotFound => None,
        // It was killed meanwhile.
        Err(error) if error.raw_os_error() == Some(libc::ESRCH) => None,
        Err(error) => panic!(
            "cannot look at handle {} of process {tid}: {error}",
            fd as i32
        ),
    }
}

/// A path in the memory of the task, as seen from `dir` or from its working directory.
fn path(tid: i32, dir: Option<u64>, address: u64) -> Option<PathBuf> {
    let mut text = Vec::new();
    // A name may end before a page that cannot be read.
    while text.len() < libc::PATH_MAX as usize {
        let from = address + text.len() as u64;
        let mut part = vec![0; (4096 - from % 4096) as usize];
        let count = sys::read_memory(tid, from, &mut part).ok()?;
        let end = part[..count].iter().position(|byte| *byte == 0);
        text.extend_from_slice(&part[..end.unwrap_or(count)]);
        if end.is_some() || count == 0 {
            break;
        }
    }
    let name = PathBuf::from(OsString::from_vec(text));
    let base = match dir.map(|fd| fd as i32) {
        None | Some(libc::AT_FDCWD) => format!("/proc/{tid}/cwd"),
        Some(fd) => format!("/proc/{tid}/fd/{fd}"),
    };
    match fs::read_link(base) {
        // An empty name is the handle itself.
        Ok(base) if name.as_os_str().is_empty() => Some(base),
        Ok(base) => Some(base.join(name)),
        Err(_) => Some(name),
    }
}
