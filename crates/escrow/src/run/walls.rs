//! The walls around a command: which of them this machine has, why one is missing, and what to do about it.

use std::path::Path;

use super::{landlock, limits, notify};

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
    let network = (!notify::can_ask()).then(|| {
        both(
            "this kernel asks no other process about calls (Linux 5.19)",
            "`--network none` or a list of hosts closes the same ways",
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
            "files, processes, and without `--network host` the network, that are not the plan's",
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
        Wall::new(
            "own network",
            "services of this machine, its link and its cloud (`--network own`, the default)",
            network,
        ),
        Wall::new("limits", "memory, processes and processors", limits),
    ]
}

/// What keeps an ordinary user from making namespaces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Obstacle {
    /// A setting of the kernel, and the value that permits them.
    Setting(&'static str, &'static str),
    /// AppArmor permits them to programs with a profile only.
    AppArmor,
    /// A filter of system calls, as container engines set one.
    Filter,
    /// Nothing that is known.
    Unknown,
}

impl Obstacle {
    fn find() -> Self {
        let is = |name: &str, value: &str| {
            limits::text(&Path::new("/proc/sys").join(name)).trim() == value
        };
        if is("user/max_user_namespaces", "0") {
            return Self::Setting("user.max_user_namespaces", "10000");
        }
        if is("kernel/unprivileged_userns_clone", "0") {
            return Self::Setting("kernel.unprivileged_userns_clone", "1");
        }
        if is("kernel/apparmor_restrict_unprivileged_userns", "1") {
            return Self::AppArmor;
        }
        let status = limits::text(Path::new("/proc/self/status"));
        let filtered = |line: &str| line.starts_with("Seccomp:") && !line.ends_with('0');
        match status.lines().any(filtered) {
            true => Self::Filter,
            false => Self::Unknown,
        }
    }
}

const CONTAINER: &str = "permit `unshare`, `clone`, `mount` and `fsopen` there (Docker, Podman: `--cap-add SYS_ADMIN --security-opt seccomp=unconfined --security-opt apparmor=unconfined`)";

/// What keeps an ordinary user from making namespaces, as far as the machine tells.
fn what_forbids() -> String {
    match Obstacle::find() {
        Obstacle::Setting(name, value) => format!("`sysctl {name}={value}` permits them"),
        Obstacle::AppArmor => {
            "AppArmor forbids them to programs without a profile: `escrow doctor --fix` prints one"
                .to_owned()
        }
        Obstacle::Filter => {
            format!("a filter of system calls is set, as in a container: {CONTAINER}")
        }
        Obstacle::Unknown => "look at the kernel's log for what forbade it".to_owned(),
    }
}

/// How to permit this program to make namespaces: commands for a shell with explanations as comments. Nothing is changed.
pub fn fix(program: &Path) -> String {
    let setting = |name: &str, value: &str| {
        format!(
            "sudo sysctl {name}={value}\necho '{name}={value}' | sudo tee /etc/sysctl.d/60-escrow.conf\n"
        )
    };
    match Obstacle::find() {
        Obstacle::Setting(name, value) => {
            let commands = setting(name, value);
            format!(
                "# The setting {name} forbids user namespaces. This permits them, now and after a restart:\n{commands}"
            )
        }
        Obstacle::AppArmor => format!(
            "# AppArmor forbids user namespaces to programs without a profile. This profile permits them to escrow alone:\n\
            {}\n# Or for every program:\n# sudo sysctl kernel.apparmor_restrict_unprivileged_userns=0\n",
            profile(program)
        ),
        Obstacle::Filter => {
            format!("# A filter of system calls is set, as in a container: {CONTAINER}\n")
        }
        Obstacle::Unknown => {
            "# No setting that is known forbids them: look at the kernel's log for what did\n"
                .to_owned()
        }
    }
}

/// The profile of AppArmor for a program, with the commands that install it.
fn profile(program: &Path) -> String {
    let mut path = String::new();
    for one in program.to_string_lossy().chars() {
        // They stand for other characters in a profile.
        if "*?[]{}^\\\"".contains(one) {
            path.push('\\');
        }
        path.push(one);
    }
    format!(
        "sudo tee /etc/apparmor.d/escrow <<'END'\nabi <abi/4.0>,\ninclude <tunables/global>\n\n\
        profile escrow \"{path}\" flags=(unconfined) {{\n  userns,\n\n  include if exists <local/escrow>\n}}\n\
        END\nsudo apparmor_parser -r /etc/apparmor.d/escrow"
    )
}

fn is_there(path: &str) -> bool {
    rustix::fs::access(path, rustix::fs::Access::EXISTS).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_profile_names_the_program_and_nothing_else() {
        let text = profile(Path::new("/opt/my tools/esc*row"));
        let line = "profile escrow \"/opt/my tools/esc\\*row\" flags=(unconfined) {";
        assert!(text.lines().any(|one| one == line), "{text}");
        assert!(
            text.contains("\n  userns,\n") && text.contains("\nabi <abi/4.0>,\n"),
            "{text}"
        );
    }
}
