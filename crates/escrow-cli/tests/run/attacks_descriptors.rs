//! Descriptors that a command hands to a process outside, and descriptors of ours that a command tries to get.
//!
//! What is handed out goes through a socket that is the command's standard input, so that it arrives whatever
//! the kernel closes; this test is the process that gets it, which is more than another plan could be.

use std::io::{IoSliceMut, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;

use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};

use crate::attacks::{Scene, compile};
use crate::*;

/// Sends descriptors of files through its standard input, opened as each word says, and waits until they have arrived.
pub(crate) const SEND: &str = r#"
int main(int argc, char **argv) {
    int fds[16], n = 0;
    for (int i = 1; i + 1 < argc; i += 2) {
        int how = argv[i][0] == 'w' ? O_RDWR : argv[i][0] == 'p' ? O_PATH : O_RDONLY;
        fds[n++] = open(argv[i + 1], how);
    }
    char byte = 'x', room[CMSG_SPACE(sizeof fds)];
    struct iovec part = {&byte, 1};
    struct msghdr all = {0, 0, &part, 1, room, CMSG_SPACE(n * sizeof *fds), 0};
    struct cmsghdr *one = CMSG_FIRSTHDR(&all);
    one->cmsg_level = SOL_SOCKET, one->cmsg_type = SCM_RIGHTS, one->cmsg_len = CMSG_LEN(n * sizeof *fds);
    memcpy(CMSG_DATA(one), fds, n * sizeof *fds);
    if (sendmsg(0, &all, 0) != 1) return 1;
    return read(0, &byte, 1) != 1;
}
"#;

/// What the command does before it hands `how` out.
const WORK: &str = "echo agent > a.txt; chmod 0640 a.txt; mkdir -m 0755 new; echo new > new/file;";

/// Every way to open what the command made, but for writing.
pub(crate) const READING: &str = "r a.txt p a.txt r . p . r new r new/file r src r src/main.rs";

pub(crate) fn scene(strategy: &str) -> Scene {
    Scene::with(strategy, |app| compile(app, "send", SEND))
}

/// Lets a command work and hand descriptors out; `meanwhile` gets them while it is still there. Returns them, and what
/// was said.
pub(crate) fn handed_out(
    scene: &Scene,
    cli: &Cli,
    how: &str,
    meanwhile: impl FnOnce(Vec<OwnedFd>) -> Vec<OwnedFd>,
) -> (Vec<OwnedFd>, String) {
    let (ours, theirs) = UnixStream::pair().expect("there are sockets");
    // A namespace of its own has mounts of its own.
    let (line, way, how) = match how.strip_prefix("nested ") {
        Some(how) => ("run --plan try --allow-userns", "unshare -Um ./send", how),
        None => ("run --plan try", "./send", how),
    };
    let mut command = cli.command(inside(line, &format!("{WORK} {way} {how}")));
    command
        .current_dir(&scene.app)
        .stdin(Stdio::from(OwnedFd::from(theirs)))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let child = command.spawn().expect("it can be started");
    drop(command);
    let fds = meanwhile(receive(&ours));
    (&ours).write_all(b"x").expect("it waits");
    let output = child.wait_with_output().expect("it is ours");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{said}");
    (fds, said)
}

pub(crate) fn receive(socket: &UnixStream) -> Vec<OwnedFd> {
    let mut byte = [0];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(16))];
    let mut with = RecvAncillaryBuffer::new(&mut space);
    let mut parts = [IoSliceMut::new(&mut byte)];
    recvmsg(socket, &mut parts, &mut with, RecvFlags::CMSG_CLOEXEC).expect("it sends");
    let fds = with.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(fds) => Some(fds),
        _ => None,
    });
    let fds: Vec<OwnedFd> = fds.flatten().collect();
    assert!(!fds.is_empty());
    fds
}

/// Tries everything with what was handed out.
pub(crate) fn attack(fds: &[OwnedFd]) {
    for fd in fds {
        let itself = PathBuf::from(format!("/proc/self/fd/{}", fd.as_raw_fd()));
        let below = [
            "a.txt",
            "file",
            "main.rs",
            "new/file",
            "src/main.rs",
            "more",
        ];
        for path in below
            .iter()
            .map(|name| itself.join(name))
            .chain([itself.clone()])
        {
            let opened = File::options().append(true).open(&path);
            // What is refused is what must be.
            let _ = opened.and_then(|mut file| file.write_all(b"evil\n"));
            let _ = fs::set_permissions(&path, Permissions::from_mode(0o4777));
        }
        let _ = fs::write(itself.join("evil"), "evil\n");
        let _ = fs::remove_file(itself.join("main.rs"));
    }
}

pub(crate) fn bug(scene: &Scene, name: &str) -> Cli {
    scene.cli.clone().env("ESCROW_SEEDED_BUG", name)
}

/// The file `a.txt` in the area of the only sandbox of a scene.
pub(crate) fn sandboxed(scene: &Scene, strategy: &str) -> PathBuf {
    let areas = paths(scene.world.home().join("sandboxes")).into_iter();
    let mut areas = areas.filter(|path| path.join("stage").is_dir());
    let area = areas.next().expect("there is a sandbox");
    if strategy != "overlay" {
        return area.join("copy/tree/a.txt");
    }
    let layers = paths(area.join("layers")).into_iter();
    let mut files = layers.map(|layer| layer.join("a.txt"));
    let last = files.rfind(|file| file.exists());
    last.expect("the file is in one of them")
}

fn inode(path: &Path) -> u64 {
    path.symlink_metadata().expect("it is there").ino()
}

// attack D14; rule C2
#[test]
fn d14_what_was_released_stayed_writable_by_a_descriptor_that_had_left() {
    as_user_too();
    for (strategy, how) in [
        ("overlay", READING.to_owned()),
        ("filesystem_copy", READING.to_owned()),
        ("filesystem_copy", format!("nested {READING}")),
    ] {
        let scene = scene(strategy);
        let (fds, said) = handed_out(&scene, &scene.cli, &how, |fds| fds);
        assert!(!said.contains("may still write"), "{said}");
        scene.cli.ok("commit try");
        assert_eq!(read(scene.app.join("a.txt")), "agent\n");
        let released = signature(&scene.app);
        attack(&fds);
        unchanged(&released, &scene.app);
        scene.cli.ok("undo try");
        assert_eq!(read(scene.app.join("a.txt")), "one\ntwo\n");
    }
}

/// The control: where layers stay open, or files of copies become the original's, the same attack works.
#[test]
fn d14_the_attack_works_without_the_walls() {
    if !cfg!(feature = "seeded-bugs") {
        return skip("built without the feature seeded-bugs");
    }
    as_user_too();
    for (strategy, without) in [
        ("overlay", "layers-left-open"),
        ("filesystem_copy", "exposed-files-linked"),
    ] {
        let scene = scene(strategy);
        let cli = bug(&scene, without);
        // Through the mount of a copy itself nothing can write any more.
        let (fds, _) = handed_out(&scene, &cli, &format!("nested {READING}"), |fds| fds);
        cli.ok("commit try");
        attack(&fds);
        let file = scene.app.join("a.txt");
        assert!(read(&file).contains("evil"), "{strategy}");
        let mode = file.metadata().expect("it is there").mode();
        assert_eq!(mode & 0o7777, 0o4777, "{strategy}");
    }
}

/// A descriptor that can write, or a mapping that outlived its descriptor, keeps layers from being closed.
// attack D14
#[test]
fn d14_a_writer_that_is_left_is_told_and_changes_nothing() {
    as_user_too();
    for mapped in [false, true] {
        let scene = scene("overlay");
        let mut map = None;
        let (fds, said) = handed_out(&scene, &scene.cli, "w a.txt", |fds| match mapped {
            false => fds,
            true => {
                map = Some(Map::of(&fds[0]));
                Vec::new()
            }
        });
        assert!(said.contains("may still write"), "{mapped}: {said}");
        scene.cli.ok("diff try");
        scene.cli.ok("commit try");
        let released = signature(&scene.app);
        attack(&fds);
        if let Some(map) = &map {
            map.write(b"EVIL");
        }
        unchanged(&released, &scene.app);
        assert_eq!(read(scene.app.join("a.txt")), "agent\n");
    }
}

/// A file that is mapped for writing.
struct Map(*mut libc::c_void);

impl Map {
    #[allow(unsafe_code, reason = "a mapping has no safe form")]
    fn of(file: &OwnedFd) -> Self {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping, wherever the kernel puts it.
        let at = unsafe {
            let none = std::ptr::null_mut();
            libc::mmap(none, 4096, access, libc::MAP_SHARED, file.as_raw_fd(), 0)
        };
        assert_ne!(at, libc::MAP_FAILED);
        Self(at)
    }

    #[allow(unsafe_code, reason = "a mapping has no safe form")]
    fn write(&self, bytes: &[u8]) {
        // SAFETY: the mapping lives as long as this does, and is longer than the bytes; the file is too.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.0.cast(), bytes.len()) };
    }
}

/// What is linked is proven closed: by the kernel when the last command ends, or by a boot since.
// attack D14; rule C11
#[test]
fn d14_files_are_linked_only_where_it_is_proven_that_nothing_can_write_them() {
    as_user_too();
    let run = |scene: &Scene| scene.cli.ok(in_try("echo agent > a.txt"));
    let is_linked = |scene: &Scene, strategy: &str| {
        let before = inode(&sandboxed(scene, strategy));
        scene.cli.ok("commit try");
        before == inode(&scene.app.join("a.txt"))
    };
    let mark = |scene: &Scene, strategy: &str| {
        let file = sandboxed(scene, strategy);
        let area = file.ancestors().find(|dir| dir.join("stage").is_dir());
        area.expect("it is in an area").join("exposed")
    };
    // Closed, twice.
    let scene = Scene::new("overlay");
    run(&scene);
    run(&scene);
    assert!(!mark(&scene, "overlay").exists());
    assert!(is_linked(&scene, "overlay"));
    // Never shown to a command.
    for strategy in STRATEGIES {
        let scene = Scene::new(strategy);
        let typed = scene.cli.clone().stdin("typed\n");
        typed.ok("write try app a.txt");
        assert!(is_linked(&scene, strategy), "{strategy}");
    }
    // A copy, which nothing closes; and the same after a boot.
    for booted in [false, true] {
        let scene = Scene::new("filesystem_copy");
        run(&scene);
        let mark = mark(&scene, "filesystem_copy");
        assert!(mark.exists());
        if booted {
            write(&mark, "another boot");
        }
        assert_eq!(is_linked(&scene, "filesystem_copy"), booted);
    }
    // Left open by one, and closed by the next: nothing is proven of the first.
    let scene = self::scene("overlay");
    let (fds, said) = handed_out(&scene, &scene.cli, "w a.txt", |fds| fds);
    assert!(said.contains("may still write"), "{said}");
    drop(fds);
    run(&scene);
    assert!(mark(&scene, "overlay").exists());
    assert!(!is_linked(&scene, "overlay"));
}

/// A reaper that is killed leaves layers that are not closed.
// attack D14
#[test]
fn d14_layers_of_a_killed_reaper_are_not_linked() {
    as_user_too();
    let scene = Scene::new("overlay");
    let mut running = Running::ready(
        scene
            .cli
            .command(in_try(&format!("echo agent > a.txt; {WAIT}"))),
    );
    // The reaper is the one that no terminal, and no stream of ours, is left to.
    let warden = processes(&scene.world).into_iter().find_map(|line| {
        let pid = line.strip_prefix("process ")?.split(':').next()?.to_owned();
        let output = fs::read_link(format!("/proc/{pid}/fd/1")).ok()?;
        let status = read(format!("/proc/{pid}/status"));
        let numbers = status.lines().find(|line| line.starts_with("NSpid:"))?;
        let outside = numbers.split_whitespace().count() == 2;
        (output == Path::new("/dev/null") && outside).then_some(pid)
    });
    let warden = warden.expect("there is one");
    sh(scene.world.path(), &format!("kill -9 {warden}"));
    running.gone();
    crate::running::assert_soon_quiet(&scene.world);
    let before = inode(&sandboxed(&scene, "overlay"));
    scene.cli.ok("commit try");
    assert_eq!(read(scene.app.join("a.txt")), "agent\n");
    assert_ne!(inode(&scene.app.join("a.txt")), before);
}

/// Listens at, or connects to, a name that is in no file system.
const ABSTRACT: &str = r#"
int main(int argc, char **argv) {
    if (argc < 3) return printf("%ld\n", syscall(444, 0, 0, 1)), 0;
    struct sockaddr_un at = {AF_UNIX};
    strcpy(at.sun_path + 1, argv[2]);
    int length = 3 + strlen(argv[2]), one = socket(AF_UNIX, SOCK_STREAM, 0);
    if (argv[1][0] == 'c')
        return puts(connect(one, (void *)&at, length) ? errno == ECONNREFUSED ? "none" : "refused" : "connected"), 0;
    if (bind(one, (void *)&at, length) || listen(one, 8)) return 1;
    puts("ready"), fflush(stdout);
    if (argv[1][0] == 'l') read(0, &at, 1);
    else if (!fork()) execl(argv[0], argv[0], "connect", argv[2], (char *)0);
    else wait(0);
    return 0;
}
"#;

// attack D15
#[test]
fn d15_plans_met_at_an_abstract_socket() {
    as_user_too();
    let scene = Scene::with("overlay", |app| compile(app, "abstract", ABSTRACT));
    let other = scene.world.dir("other");
    fs::copy(scene.app.join("abstract"), other.join("abstract")).expect("there is room");
    let theirs = scene.cli.clone().cwd(&other);
    theirs.ok("plan create other --resource . --strategy overlay");
    let outside = |how: &str, name: &str| {
        let mut command = Command::new(scene.app.join("abstract"));
        command.args([how, name]);
        command
    };
    let version = Command::new(scene.app.join("abstract"))
        .output()
        .expect("it runs");
    let version: i64 = String::from_utf8_lossy(&version.stdout)
        .trim()
        .parse()
        .expect("a number");
    let name = format!("escrow-test-{}", std::process::id());
    let connect = format!("./abstract connect {name}");
    let listen = format!("./abstract listen {name}");
    for network in ["host", "none"] {
        if network == "host" && version < 6 {
            skip("this kernel cannot scope abstract sockets (Landlock before Linux 6.12)");
            continue;
        }
        let listening = Running::ready(scene.cli.command(inside(
            &format!("run --plan try --network {network}"),
            &listen,
        )));
        // From another plan that shares the machine's network.
        let met = theirs.ok(inside("run --plan other --network host", &connect));
        assert_eq!(
            met,
            if network == "host" {
                "refused\n"
            } else {
                "none\n"
            }
        );
        // The control: outside it is there, if the network is.
        let met = outside("connect", &name).output().expect("it runs");
        let expected = if network == "host" {
            "connected\n"
        } else {
            "none\n"
        };
        assert_eq!(String::from_utf8_lossy(&met.stdout), expected);
        assert_eq!(listening.finish().status, 0);
    }
    // What is outside cannot be reached either; a command and its children reach each other.
    let mut machine = outside("listen", &name);
    machine.stdin(Stdio::piped());
    let machine = Running::ready(machine);
    // A network of the plan's own has no such socket; in the machine's, Landlock refuses it.
    scene.says(&connect, "none\n");
    if version >= 6 {
        let line = inside("run --plan try --network host", &connect);
        scene.cli.says(line, "refused\n");
    }
    assert_eq!(machine.finish().status, 0);
    scene.says(&format!("./abstract both {name}"), "ready\nconnected\n");
}

/// Takes descriptors of every process it sees, again and again, until `stop` is there; says what it got.
const STEAL: &str = r#"
int main(void) {
    int top = getpid();
    char path[64], target[4096];
    puts("ready"), fflush(stdout);
    while (access("stop", F_OK))
        for (int pid = 1; pid <= top + 8; pid++) {
            int one = pid == getpid() ? -1 : syscall(434, pid, 0);
            if (one < 0) continue;
            if (pid > top) top = pid;
            for (int n = 3; n < 64; n++) {
                int fd = syscall(438, one, n, 0);
                if (fd < 0) continue;
                sprintf(path, "/proc/self/fd/%d", fd);
                int length = readlink(path, target, sizeof target - 1);
                target[length > 0 ? length : 0] = 0;
                // What a program opens to begin is its own.
                if (strncmp(target, "/usr/", 5) && strncmp(target, "/lib", 4) && strncmp(target, "/etc/", 5)
                    && strncmp(target, "/proc/", 6))
                    printf("stolen: %s\n", target), fflush(stdout);
                close(fd);
            }
            close(one);
        }
    puts("over");
    return 0;
}
"#;

/// Lets commands join while another one steals; what it got.
fn stolen(bug: Option<&str>, network: &str, joins: usize) -> Vec<String> {
    let scene = Scene::with("overlay", |app| compile(app, "steal", STEAL));
    let secret = scene.beside.join("file");
    let secret = secret.to_str().expect("a plain path");
    // The second wall would stop it too, whatever the first one does.
    let thief = self::bug(&scene, "no-second-wall");
    let thief = Running::ready(thief.command(inside(
        &format!("run --plan try --network {network}"),
        "./steal",
    )));
    let cli = match bug {
        Some(name) => self::bug(&scene, name),
        None => scene.cli.clone(),
    };
    for _ in 0..joins {
        // With a file of the caller's that is open, and not closed by exec.
        let outer = ["sh", "-c", r#"exec 9<"$0"; exec "$@""#, secret];
        output_of(&mut cli.behind(&outer, "run --plan try -- true"));
    }
    // A directory: who makes a file has it open temporarily, and that is its own.
    scene.cli.ok(in_try("mkdir stop"));
    let mut got = Vec::new();
    loop {
        match thief.line() {
            line if line == "over" => break,
            line => got.push(line),
        }
    }
    assert_eq!(thief.finish().status, 0);
    got
}

// attack D16; rule S3
#[test]
fn d16_descriptors_were_stolen_before_a_command_began() {
    as_user_too();
    for network in ["none", "host"] {
        assert_eq!(stolen(None, network, 15), Vec::<String>::new(), "{network}");
    }
}

/// The control: without the wall the same thief gets what the caller had open.
#[test]
fn d16_the_thief_succeeds_without_the_wall() {
    if !cfg!(feature = "seeded-bugs") {
        return skip("built without the feature seeded-bugs");
    }
    as_user_too();
    let got = stolen(Some("open-until-exec"), "none", 15);
    assert!(got.iter().any(|line| line.contains("socket:")), "{got:?}");
    assert!(got.iter().any(|line| line.contains("locks")), "{got:?}");
}

// attack D17
#[test]
fn d17_devices_are_the_machines_and_stay_as_they_are() {
    as_user_too();
    let scene = Scene::new("overlay");
    let devices = ["null", "zero", "full", "random", "urandom", "tty"];
    let looks = || {
        devices.map(|name| {
            let meta = Path::new("/dev")
                .join(name)
                .metadata()
                .expect("it is there");
            (
                meta.mode(),
                meta.uid(),
                meta.gid(),
                meta.mtime(),
                meta.ino(),
            )
        })
    };
    let before = looks();
    // Modes and owners that harm nothing, should they be set.
    let script = r#"
        for name in null zero full random urandom tty; do
            chmod 0666 /dev/$name && echo "chmod $name"
            chmod 0667 /dev/$name && echo "chmod $name"
            chown "$(id -u)" /dev/$name && echo "chown $name"
            touch -d 2001-01-01 /dev/$name && echo "touch $name"
            rm -f /dev/$name && echo "rm $name"
            cp /bin/true /dev/$name-more 2>&1
        done 2>/dev/null
        echo x > /dev/null && head -c 3 /dev/zero | wc -c && head -c 5 /dev/urandom | wc -c
        (echo x > /dev/full) 2>/dev/null || echo full
        exec 7<>/dev/null && echo x >&7 && echo usable
    "#;
    let outcome = scene.run(script);
    let after = looks();
    if after != before {
        for (name, (mode, uid, gid, ..)) in devices.iter().zip(before) {
            sh(
                Path::new("/dev"),
                &format!("chmod {:o} {name}; chown {uid}:{gid} {name}", mode & 0o7777),
            );
        }
    }
    assert_eq!(after, before);
    let expected = "3\n5\nfull\nusable\n";
    assert_eq!(outcome.stdout_text(), expected, "{}", outcome.stderr_text());
}

/// Where `/etc/resolv.conf` leads into `/run`, the file there is shown, and is the machine's.
// attack D17
#[test]
fn d17_the_file_that_says_how_names_are_looked_up_cannot_be_written() {
    need!(require_root("an /etc of its own"));
    let scene = Scene::new("overlay");
    let script = r#"
        mount -t tmpfs none /run && mkdir /run/names && echo precious > /run/names/resolv.conf
        chmod 0644 /run/names/resolv.conf
        mount -t tmpfs none /mnt && cp -a /etc /mnt/etc && ln -sf /run/names/resolv.conf /mnt/etc/resolv.conf
        mount --bind /mnt/etc /etc
        "$@" || exit 1
        cat /run/names/resolv.conf; stat -c %a /run/names/resolv.conf
    "#;
    let inner = "cat /etc/resolv.conf; { echo evil >> /etc/resolv.conf; chmod 0600 /run/names/resolv.conf; \
        touch -d 2001-01-01 /run/names/resolv.conf; } 2>/dev/null; :";
    let outer = ["unshare", "-m", "sh", "-c", script, "sh"];
    for cli in [scene.cli.clone(), crate::attacks_root::user_of(&scene)] {
        let line = inside("run --new --rollback", inner);
        let output = cli.behind(&outer, line).output();
        let output = output.expect("there is unshare");
        let said = String::from_utf8_lossy(&output.stderr);
        let text = String::from_utf8_lossy(&output.stdout);
        assert_eq!(text, "precious\nprecious\n644\n", "{said}");
    }
    scene.unharmed();
}
