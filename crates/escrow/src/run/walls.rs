//! The walls around a command: which of them this machine has, why one is missing, and what to do about it.

use std::path::Path;

use super::{landlock, limits};

/// One wall.
#[derive(Debug, Clone)]
pub struct Wall {
    /// Its name.
    pub name: &'static str,
    /// What it keeps from a command.
    pub protects: &'static str,
    /// Why it is not there, or not whole; `None` if it is.
    pub missing: Option<String>,
    /// What to do about that.
    pub hint: Option<String>,
}

impl Wall {
    fn new(name: &'static str, protects: &'static str, missing: Option<(String, String)>) -> Self {
        let (missing, hint) = missing.unzip();
        Self {
            name,
            protects,
            missing,
            hint,
        }
    }
}

/// All of them. The caller has tried to make a namespace, and says why that failed.
pub fn walls(no_run: Option<&str>) -> Vec<Wall> {
    let both = |why: &str, hint: &str| (why.to_owned(), hint.to_owned());
    let namespaces = no_run.map(|why| (why.to_owned(), what_forbids()));
    let filter = is_there("/proc/sys/kernel/seccomp/actions_avail");
    let filter = (!filter).then(|| {
        both(
            "this kernel has no filters of system calls",
            "use a kernel with CONFIG_SECCOMP_FILTER",
        )
    });
    let second = (!landlock::confines_files()).then(|| {
        both(
            "this kernel has no Landlock, or one older than Linux 6.2",
            "the mounts keep files safe without it; `lsm=landlock,…` on the kernel's command line turns it on where it is built in",
        )
    });
    let sockets = (!landlock::scopes_sockets()).then(|| {
        both(
            "this kernel cannot scope abstract sockets (Landlock of Linux 6.12)",
            "`--network none` closes the same way",
        )
    });
    let watched = limits::without_groups();
    let limits = (!watched.is_empty()).then(|| {
        let why = match watched.contains(&"cpu") {
            true => format!(
                "no control group for {} can be made: --cpu is refused, the others are watched",
                watched.join(", ")
            ),
            false => format!(
                "no control group for {} can be made: they are watched",
                watched.join(", ")
            ),
        };
        let hint = "run in a session of systemd with delegated control groups, or as root";
        (why, hint.to_owned())
    });
    vec![
        Wall::new(
            "namespaces",
            "files, processes, and with `--network none` or a list of hosts the network, that are not the plan's",
            namespaces,
        ),
        Wall::new(
            "no capabilities",
            "whatever root could do; setuid programs",
            None,
        ),
        Wall::new(
            "system call filter",
            "nested namespaces, mounts, keys, bpf, io_uring, typing into the terminal",
            filter,
        ),
        Wall::new(
            "second wall",
            "writing files, should a mount let it (Landlock; not with `--allow-userns`)",
            second,
        ),
        Wall::new(
            "socket scope",
            "abstract Unix sockets of the machine and of other plans",
            sockets,
        ),
        Wall::new("limits", "memory, processes and processors", limits),
    ]
}

/// What keeps an ordinary user from making namespaces, as far as the machine tells.
fn what_forbids() -> String {
    let settings = [
        (
            "user/max_user_namespaces",
            "0",
            "`sysctl user.max_user_namespaces=10000` permits them",
        ),
        (
            "kernel/unprivileged_userns_clone",
            "0",
            "`sysctl kernel.unprivileged_userns_clone=1` permits them",
        ),
        (
            "kernel/apparmor_restrict_unprivileged_userns",
            "1",
            "AppArmor forbids them: `sysctl kernel.apparmor_restrict_unprivileged_userns=0`, or a profile for escrow with `userns`",
        ),
    ];
    for (name, forbids, hint) in settings {
        if limits::text(&Path::new("/proc/sys").join(name)).trim() == forbids {
            return hint.to_owned();
        }
    }
    let status = limits::text(Path::new("/proc/self/status"));
    match status.lines().any(|line| line.starts_with("Seccomp:") && !line.ends_with('0')) {
        true => "a filter of system calls is set, as in a container: permit `unshare`, `clone`, `mount` and `fsopen` there (Docker, Podman: `--cap-add SYS_ADMIN --security-opt seccomp=unconfined --security-opt apparmor=unconfined`)".to_owned(),
        false => "look at the kernel's log for what forbade it".to_owned(),
    }
}

fn is_there(path: &str) -> bool {
    rustix::fs::access(path, rustix::fs::Access::EXISTS).is_ok()
}
