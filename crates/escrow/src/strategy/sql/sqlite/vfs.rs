//! The file access of SQLite without super-journals, which name other files.
//!
//! A journal that a crashed process left may name a super-journal, and recovery opens and deletes the file of that
//! name. In a sandbox a command writes the journal, so it would choose a file of the user's. A transaction over
//! several files is therefore never recovered here: opening such a database fails.
#![allow(
    unsafe_code,
    reason = "SQLite takes its file access as C functions; nothing else in this module is unsafe"
)]

use std::ffi::{CStr, c_char, c_int};
use std::ptr;
use std::sync::OnceLock;

use rusqlite::ffi;

const NAME: &CStr = c"escrow";

/// The file access that this one passes everything on to.
static BELOW: OnceLock<usize> = OnceLock::new();

/// Makes it known to SQLite, once; returns its name, or none where SQLite refuses it.
pub(super) fn name() -> Option<&'static CStr> {
    let registered = BELOW.get_or_init(|| {
        // SAFETY: the VFS found is a static of SQLite and is copied as a whole. The copy is leaked, so it lives as long
        // as the process, and its functions take the data that belongs to the original.
        unsafe {
            ffi::sqlite3_initialize();
            let below = ffi::sqlite3_vfs_find(ptr::null());
            if below.is_null() {
                return 0;
            }
            let mut own = *below;
            own.zName = NAME.as_ptr();
            own.pNext = ptr::null_mut();
            own.xOpen = Some(open);
            let own = Box::leak(Box::new(own));
            match ffi::sqlite3_vfs_register(own, 0) {
                ffi::SQLITE_OK => below as usize,
                _ => 0,
            }
        }
    });
    (*registered != 0).then_some(NAME)
}

/// Opens a file, unless it is a super-journal.
///
/// # Safety
///
/// SQLite alone calls it, with a file object of the size that the VFS says.
unsafe extern "C" fn open(
    _own: *mut ffi::sqlite3_vfs,
    name: *const c_char,
    file: *mut ffi::sqlite3_file,
    flags: c_int,
    opened: *mut c_int,
) -> c_int {
    let below = BELOW.get().copied().unwrap_or_default() as *mut ffi::sqlite3_vfs;
    // SAFETY: `below` is the static VFS of SQLite, or null; the rest is passed on as SQLite gave it. A file without
    // methods is one that was not opened.
    unsafe {
        let pass = below.as_ref().and_then(|below| below.xOpen);
        match pass {
            Some(pass) if flags & ffi::SQLITE_OPEN_SUPER_JOURNAL == 0 => {
                pass(below, name, file, flags, opened)
            }
            _ => {
                (*file).pMethods = ptr::null();
                ffi::SQLITE_CANTOPEN
            }
        }
    }
}
