//! The ports on which processes listen that a command left behind.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use crate::fs::{Dir, process};

/// How the kernel writes that a socket waits for connections.
const LISTENS: &str = "0A";

/// What the processes of this one listen on, for people; `None` where that is nothing.
pub(super) fn text() -> Option<String> {
    let processes = process::descendants().unwrap_or_default();
    if processes.is_empty() {
        return None;
    }
    let lists =
        ["/proc/net/tcp", "/proc/net/tcp6"].map(|path| super::limits::text(Path::new(path)));
    let sockets: BTreeMap<String, u16> = lists.iter().flat_map(|list| sockets(list)).collect();
    if sockets.is_empty() {
        return None;
    }
    let mut found = BTreeSet::new();
    for pid in processes {
        let own = PathBuf::from(format!("/proc/{pid}"));
        let name = super::limits::text(&own.join("comm"));
        let open = Dir::open(&own.join("fd")).and_then(|dir| dir.names());
        for number in open.unwrap_or_default() {
            let number = String::from_utf8_lossy(&number).into_owned();
            let target = rustix::fs::readlink(own.join("fd").join(number), Vec::new());
            let target = target.unwrap_or_default();
            if let Some(port) = sockets.get(&*target.to_string_lossy()) {
                found.insert((
                    *port,
                    crate::model::text::escape(name.trim_end().as_bytes()),
                ));
            }
        }
    }
    let words = found
        .into_iter()
        .map(|(port, name)| format!("{name} on port {port}"));
    let words = words.collect::<Vec<_>>().join(", ");
    (!words.is_empty()).then(|| {
        format!("still listening when the command ended, and ended with it: {words}; a server that is to stay is run as the command")
    })
}

/// Which of these ports a process outside, on this machine's loopback, listens on, and its name where that can be seen.
pub(super) fn outside(ports: &BTreeSet<u16>) -> Vec<(u16, Option<String>)> {
    let lists =
        ["/proc/net/tcp", "/proc/net/tcp6"].map(|path| super::limits::text(Path::new(path)));
    let sockets = lists.iter().flat_map(|list| sockets(list));
    let mut sockets: BTreeMap<String, u16> =
        sockets.filter(|(_, port)| ports.contains(port)).collect();
    let mut found: BTreeMap<u16, Option<String>> =
        sockets.values().map(|port| (*port, None)).collect();
    for pid in process::parents().unwrap_or_default().into_keys() {
        if sockets.is_empty() {
            break;
        }
        let own = PathBuf::from(format!("/proc/{pid}"));
        let open = Dir::open(&own.join("fd")).and_then(|dir| dir.names());
        for number in open.unwrap_or_default() {
            let number = String::from_utf8_lossy(&number).into_owned();
            let target = rustix::fs::readlink(own.join("fd").join(number), Vec::new());
            let target = target.unwrap_or_default();
            if let Some(port) = sockets.remove(&*target.to_string_lossy()) {
                let name = super::limits::text(&own.join("comm"));
                let name = crate::model::text::escape(name.trim_end().as_bytes());
                found.insert(port, Some(name));
            }
        }
    }
    found.into_iter().collect()
}

/// The sockets of a list of the kernel that listen: how they are called as a descriptor, and their ports.
pub(super) fn sockets(list: &str) -> impl Iterator<Item = (String, u16)> {
    list.lines().skip(1).filter_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let (local, state, inode) = (fields.get(1)?, fields.get(3)?, fields.get(9)?);
        let port = u16::from_str_radix(local.rsplit(':').next()?, 16).ok()?;
        (*state == LISTENS).then(|| (format!("socket:[{inode}]"), port))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_the_kernel_are_read() {
        let list = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n   \
            0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 4242 1 0 100 0 0 10 0\n   \
            1: 0100007F:1F91 0100007F:9C40 01 00000000:00000000 00:00000000 00000000  1000        0 4243 1 0 100 0 0 10 0\n";
        let found: Vec<_> = sockets(list).collect();
        assert_eq!(found, [("socket:[4242]".to_owned(), 8080)]);
    }
}
