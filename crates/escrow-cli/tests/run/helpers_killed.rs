//! Processes that help those inside are killed, as the kernel does where memory ends.

use std::io::{BufRead, BufReader, Write};
use std::time::{Duration, Instant};

use crate::*;

/// The processes below this one that hear of renames, each with its parent.
fn listeners(below: u32) -> Vec<(u32, u32)> {
    let parent = |pid: u32| {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        let line = status.lines().find_map(|line| line.strip_prefix("PPid:"))?;
        line.trim().parse::<u32>().ok()
    };
    let hears = |pid: u32| {
        let open = fs::read_dir(format!("/proc/{pid}/fd"))
            .into_iter()
            .flatten();
        let mut links = open.filter_map(|one| fs::read_link(one.ok()?.path()).ok());
        links.any(|link| link.to_string_lossy().contains("seccomp notify"))
    };
    let is_below = |pid: u32| {
        let mut above = std::iter::successors(Some(pid), |pid| parent(*pid));
        above.any(|pid| pid == below)
    };
    let all = fs::read_dir("/proc")
        .expect("there is one")
        .filter_map(|one| {
            let name = one.ok()?.file_name();
            name.to_str()?.parse::<u32>().ok()
        });
    all.filter(|pid| hears(*pid) && is_below(*pid))
        .filter_map(|pid| Some((pid, parent(pid)?)))
        .collect()
}

/// Both processes that hold the listener: the one that answers is started after the command may have begun.
fn both_listeners(below: u32) -> Vec<(u32, u32)> {
    let until = Instant::now() + Duration::from_secs(60);
    loop {
        let found = listeners(below);
        if found.len() == 2 {
            return found;
        }
        assert!(Instant::now() < until, "not two of them: {found:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

// Once the last process that could answer is gone, the kernel says that it knows no such call.
#[test]
fn a_killed_rename_helper_gave_enosys() {
    // What a process of an ordinary user has open, it may not see itself here.
    if !is_root() {
        return;
    }
    let script = "mkdir d; touch d/f; echo ready; read go; mv d e; mv e src/d; ls src/d";
    for first in [true, false] {
        let (_world, cli) = world();
        let mut command = cli.command(inside("run --new", script));
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut running = command.stderr(Stdio::piped()).spawn().expect("it starts");
        let mut said = BufReader::new(running.stdout.take().expect("it is piped"));
        let mut line = String::new();
        said.read_line(&mut line).expect("it says it");
        assert_eq!(line, "ready\n");
        let found = both_listeners(running.id());
        let holds = |pid: u32| found.iter().any(|(one, _)| *one == pid);
        // Of the two, the one that answers is the child.
        let struck = found.iter().find(|(_, parent)| holds(*parent) != first);
        let (struck, _) = struck.expect("one is the child of the other");
        sh(Path::new("/"), &format!("kill -KILL {struck}"));
        let mut stdin = running.stdin.take().expect("it is piped");
        stdin.write_all(b"go\n").expect("it reads");
        line.clear();
        said.read_line(&mut line).expect("it says it");
        let output = running.wait_with_output().expect("it ends");
        let why = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!((output.status.code(), &*line), (Some(0), "f\n"), "{why}");
    }
}
