//! Files that a hostile command makes in its sandbox to mislead the diff or the commit: both stay exact, or refuse.

use escrow_testkit::signature::Kind;

use crate::attacks::{Scene, compile};
use crate::work::{NO_TIMES, works};
use crate::*;

/// Inside they are attributes like any other, and the diff shows them; released, they would hide files in later sandboxes.
// attack C7
#[test]
fn c7_marks_of_the_overlay_that_the_command_forges() {
    as_user_too();
    for strategy in STRATEGIES {
        let before = "mkdir -p d/sub e; echo 1 > d/1; echo 2 > d/sub/2; echo 3 > e/3; echo f > f";
        let scene = Scene::with(strategy, |app| {
            sh(app, before);
        });
        let script = r#"set -eu
            for mark in opaque redirect whiteout origin metacopy impure nlink protattr upper escrow escrow-stamp; do
                setfattr -n user.overlay.$mark -v y d; setfattr -n user.overlay.$mark -v /e f
            done
            mkdir n; setfattr -n user.overlay.opaque -v y n; setfattr -n user.overlay.whiteouts -v y n
            echo new > n/new; setfattr -n user.overlay.whiteout -v y n/new; setfattr -n user.kept -v 7 n/new
            setfattr -n user.overlay.opaque -v x e; setfattr -n user.overlay.overlay.opaque -v y e
            setfattr -n user.overlay.opaque -v x .
            for empty in d/zero n/zero; do : > $empty; setfattr -n user.overlay.whiteout -v y $empty; done
            test -e d/1 && test -e d/sub/2 && test -e e/3 && test -e d/zero && test -e n/zero"#;
        assert_eq!(scene.run(script).status, 0, "{strategy}");
        scene.unharmed();
        if is_root() && strategy != "overlay" {
            let path = scene.cli.ok("path try app");
            let mark = "setfattr -n trusted.overlay.opaque -v y e src; setfattr -h -n trusted.overlay.origin -v 0 link";
            sh(Path::new(path.trim_end()), mark);
        }
        let listed = scene.cli.ok("diff try --name-status");
        has(&listed, ["P\td\n", "P\te\n", "P\tf\n", "A\td/zero\n"]);
        let commit = scene.cli.expect("commit try", 0);
        let told = [commit.stdout_text(), commit.stderr_text()].concat();
        let named = [
            "d/zero: attribute user.overlay.whiteout left out",
            "app:e: ",
            "app:f: ",
            "app:n/new: ",
        ];
        has(&told, named);
        sh(
            &scene.app,
            "test -z \"$(getfattr -R -h -m 'overlay' . )\"; test \"$(getfattr --only-values -n user.kept n/new)\" = 7",
        );
        scene.cli.plan("later", ".", "overlay");
        let seen = "cat d/zero n/zero && ls d/zero n/zero d/1 d/sub/2 e/3";
        scene.cli.ok(in_plan("later", seen));
        scene.cli.ok("undo try");
        assert_quiet(&scene.world);
    }
}

/// The kernel takes an empty file that is marked so for deleted, and it may be marked in the original.
// attack C7
#[test]
fn c7_a_file_that_is_marked_in_the_original_was_hidden_in_silence() {
    as_user_too();
    let (world, cli) = world();
    sh(
        world.at("app"),
        ": > src/init; setfattr -n user.overlay.whiteout -v y src/init",
    );
    if !is_root() {
        let said = cli.run("plan create auto --resource .").stderr_text();
        has(&said, ["src/init", "user.overlay.whiteout"]);
        cli.ok(in_plan("auto", "cat src/init"));
    }
    let made = cli.run("plan create layer --resource . --strategy overlay");
    assert!(is_root() || made.stderr_text().contains("src/init"));
    let said = cli.run(in_plan("layer", "cat src/init")).stderr_text();
    has(&said, ["the command failed", "src/init"]);
    assert_quiet(&world);
}

/// A device of number 0:0 is how a layer says that a name is gone.
// attack C3
#[test]
fn c3_whiteouts_and_devices_that_the_command_makes() {
    as_user_too();
    for strategy in STRATEGIES {
        let scene = Scene::with(strategy, |app| compile(app, "whiteout", WHITEOUT));
        let script = r#"
            exec 2>/dev/null
            mknod null c 1 3 && echo made a device
            mknod disk b 7 0 && echo made a disk
            mkdir plant; mknod plant/w c 0 0; rm a.txt; mknod a.txt c 0 0
            ./whiteout src/main.rs src/gone.rs
            :
        "#;
        scene.says(script, "");
        scene.unharmed();
        let listed = scene.cli.ok("diff try --name-status");
        let commit = scene.cli.run("commit try");
        let now = signature(&scene.app);
        assert!(
            now.values().all(|entry| entry.kind != Kind::CharDevice),
            "{strategy}: no device arrives"
        );
        if commit.status != 0 {
            // It names what it refuses, and nothing has changed.
            let said = commit.stderr_text();
            assert!(
                said.contains("plant/w") || said.contains("a.txt"),
                "{strategy}: {said}"
            );
            scene.unharmed();
            continue;
        }
        // What was listed, and nothing else, was done.
        assert!(listed.contains("a.txt"), "{strategy}: {listed}");
        assert!(now.contains_key(&b"link"[..]) && now.contains_key(&b"src"[..]));
        assert_quiet(&scene.world);
    }
}

const WHITEOUT: &str = r#"
int main(int argc, char **argv) {
    return renameat2(AT_FDCWD, argv[1], AT_FDCWD, argv[2], 1 << 2) != 0;
}
"#;

// attack C6
#[test]
fn c6_files_of_an_inner_root_arrive_as_the_users() {
    as_user_too();
    let me = (
        rustix::process::getuid().as_raw(),
        rustix::process::getgid().as_raw(),
    );
    for strategy in STRATEGIES {
        let scene = Scene::new(strategy);
        let inner = "id -u; mkdir d; echo x > d/f; ln -s f d/l; chown 0:0 d d/f; chown -h 0:0 d/l
            chown 1:1 d/f 2>/dev/null && echo became another user; echo y >> a.txt; chmod 4755 d/f";
        let outcome = scene.run_nesting(&format!("unshare -Ur sh -c '{inner}'"));
        assert_eq!(outcome.stdout_text(), "0\n", "{}", outcome.stderr_text());
        scene.cli.ok("commit try");
        for name in ["d", "d/f", "d/l", "a.txt"] {
            let meta = scene.app.join(name).symlink_metadata();
            let meta = meta.expect("it was committed");
            assert_eq!((meta.uid(), meta.gid()), me, "{strategy}: {name}");
        }
        assert_quiet(&scene.world);
    }
}

// attack D1; rule F7
#[test]
fn d1_setuid_has_no_effect_and_is_not_released() {
    as_user_too();
    for strategy in STRATEGIES {
        let scene = Scene::new(strategy);
        let script = "grep NoNewPrivs /proc/self/status | tr -dc '01'; grep Cap /proc/self/status | grep -c ' *0000000000000000$'
            cp /bin/sh tool; chmod 6755 tool; ./tool -p -c 'id -u; id -g'; mkdir s; chmod 2755 s; chmod u+s a.txt";
        let id = rustix::process::getuid().as_raw();
        let outcome = scene.run(script);
        let said = outcome.stdout_text();
        // Root has what it has in a container, in three of the five sets.
        let empty = if is_root() { 2 } else { 5 };
        assert_eq!(
            said.trim_end(),
            format!("1{empty}\n{id}\n{id}"),
            "{strategy}"
        );
        let others = "test $((0x$(sed -n 's/^CapBnd:\\t//p' /proc/self/status) & ~0x800001fb)) = 0";
        if is_root() {
            assert_eq!(scene.run(others).status, 0, "{strategy}");
        }
        let commit = scene.cli.expect("commit try", 0);
        let told = [commit.stdout_text(), commit.stderr_text()].concat();
        has(&told, ["tool", "setuid"]);
        for name in ["tool", "a.txt"] {
            let mode = scene.app.join(name).metadata().expect("committed").mode();
            assert_eq!(mode & 0o6000, 0, "{strategy}: {name}");
        }
    }
}

// attack B1; rule F2, S2
#[test]
fn b1_links_that_lead_out_are_kept_as_links() {
    let before = "mkdir -p src; echo a > a.txt; echo m > src/main.rs; ln -s a.txt link";
    let script = r#"
            ln -sfn ../beside/file a.txt; rm -r src; ln -s ../beside src
            ln -sfn /etc/passwd link; ln -s loop loop; ln -s / root
        "#;
    works(
        before,
        script,
        "test -L a.txt && test -L src && test -L root",
    );
}

/// The original changes while the command is inside, on a path that the command changes too.
// attack D10; rule C15
#[test]
fn d10_an_original_that_is_edited_meanwhile() {
    as_user_too();
    for strategy in STRATEGIES {
        for before in [true, false] {
            let scene = Scene::new(strategy);
            // Changed by the command before, or only after, the edit outside.
            let script = match before {
                true => format!("echo inside >> a.txt; {WAIT}"),
                false => format!("{WAIT}; echo inside >> a.txt"),
            };
            let line = in_try(&script);
            let running = Running::ready(scene.cli.command(line));
            write(scene.app.join("a.txt"), "outside\n");
            write(scene.app.join("src/main.rs"), "outside, alone\n");
            assert_eq!(running.finish().status, 0);
            let outcome = scene.cli.run("commit try");
            let case = format!("{strategy}, before {before}: {}", outcome.stderr_text());
            assert_eq!(outcome.status, 4, "{case}");
            assert_eq!(read(scene.app.join("a.txt")), "outside\n", "{case}");
            scene.cli.ok("commit try --on-conflict original");
            assert_eq!(read(scene.app.join("a.txt")), "outside\n", "{case}");
            let main = read(scene.app.join("src/main.rs"));
            assert_eq!(main, "outside, alone\n", "{case}");
            assert_quiet(&scene.world);
        }
    }
}

/// A layer cannot rename a directory of the original; programs are reported, and those that can copy instead.
// attack D11
#[test]
fn d11_a_directory_of_the_original_is_renamed() {
    as_user_too();
    for strategy in STRATEGIES {
        let scene = Scene::with(strategy, |app| {
            compile(app, "rename", RENAME);
            let script = "mkdir -p tree/a/b; echo 1 > tree/a/b/1; echo 2 > tree/2";
            sh(app, script);
        });
        let seen = scene.world.dir("seen");
        let script = r#"
            ./rename tree away || echo refused
            ./rename src tree/src || ./rename tree/a src || echo refused
            ./rename tree/2 two && echo a file can be renamed
            mkdir -p tree away; echo again > tree/2; cp -a . ../seen/
        "#;
        let line = inside("run --plan try --writable ../seen", script);
        let said = scene.cli.ok(line);
        assert!(said.contains("refused") || strategy != "overlay", "{said}");
        scene.unharmed();
        scene.cli.ok("commit try");
        assert_same(&signature(&seen), &signature(&scene.app), &NO_TIMES);
        assert_quiet(&scene.world);
    }
}

const RENAME: &str = r#"
int main(int argc, char **argv) { return rename(argv[1], argv[2]) != 0; }
"#;

/// Renames of directories take turns by a lock, also those of commands that join, and a checkpoint waits for them.
// attack D38
#[test]
fn d38_a_command_held_the_lock_that_renames_wait_for() {
    as_user_too();
    let scene = Scene::with("overlay", |app| {
        compile(app, "rename", RENAME);
        compile(app, "hold", HOLD);
        let script = "mkdir -p one/deep two/deep; echo 1 > one/deep/1; echo 2 > two/deep/2";
        sh(app, script);
    });
    let script = r#"
        ./hold / . .. "$HOME" /dev /dev/* /dev/*/* /proc/self/fd/* /proc/1/ns/* /tmp > /tmp/said &
        until grep -q held /tmp/said; do sleep 0.01; done
        ./rename one moved && echo ready; read nothing || :
    "#;
    let holder = Running::ready(scene.cli.command(in_try(script)));
    scene.cli.ok(in_try("./rename two moved/two"));
    scene.cli.ok("checkpoint create try");
    assert_eq!(holder.finish().status, 0);
    scene.unharmed();
    scene.cli.ok("commit try");
    sh(
        &scene.app,
        "test -e moved/deep/1 && test -e moved/two/deep/2 && test ! -e one",
    );
    assert_quiet(&scene.world);
}

/// Locks all that it can open, by both kinds of locks, and stays.
const HOLD: &str = r#"
int main(int argc, char **argv) {
    for (int i = 1; i < argc; i++) {
        int flags[] = { O_RDONLY | O_NONBLOCK | O_NOCTTY, O_RDWR | O_NONBLOCK | O_NOCTTY };
        for (int way = 0; way < 2; way++) {
            int fd = open(argv[i], flags[way]);
            struct flock whole = { .l_type = way ? F_WRLCK : F_RDLCK };
            if (fd >= 0) { syscall(SYS_flock, fd, 2 | 4); fcntl(fd, F_SETLK, &whole); }
        }
    }
    puts("held"); fflush(stdout); pause();
}
"#;

/// Directories that not even their owner may enter.
// attack C15; rule P6
#[test]
fn c15_directories_that_are_locked_from_inside() {
    as_user_too();
    for strategy in STRATEGIES {
        let scene = Scene::new(strategy);
        let script =
            "mkdir -p deep/er; echo x > deep/er/f; chmod 000 deep/er/f deep/er deep src a.txt .";
        scene.run(script);
        scene.unharmed();
        // It may refuse, if it says where.
        let diff = scene.cli.run("diff try --name-status");
        let said = [diff.stdout_text(), diff.stderr_text()].concat();
        assert!(said.contains("deep") || diff.status != 0, "{said}");
        let commit = scene.cli.run("commit try --dry-run");
        assert!(
            commit.status == 0 || commit.status == 1,
            "{}",
            commit.stderr_text()
        );
        scene.unharmed();
        scene.cli.ok("rollback try");
        assert_eq!(scene.cli.ok("diff try --name-status"), "");
        scene.run(script);
        scene.cli.ok("cleanup try");
        assert_clean(&scene.world);
        scene.unharmed();
    }
}

/// Deeper than a path can be long.
// rule F5
#[test]
fn a_tree_deeper_than_paths_are_long() {
    as_user_too();
    for strategy in STRATEGIES {
        let scene = Scene::with(strategy, |app| compile(app, "dig", DIG));
        assert_eq!(scene.run("./dig").status, 0);
        scene.unharmed();
        let listed = scene.cli.ok("diff try --name-status");
        assert_eq!(listed.lines().count(), 61, "{strategy}");
        scene.cli.ok("commit try");
        scene.cli.ok("undo try");
        scene.cli.ok("cleanup try");
        assert_clean(&scene.world);
        scene.unharmed();
    }
}

const DIG: &str = r#"
int main(void) {
    char name[201];
    memset(name, 'n', 200); name[200] = 0;
    for (int depth = 0; depth < 60; depth++)
        if (mkdir(name, 0755) || chdir(name)) return 1;
    return open("bottom", O_CREAT | O_WRONLY, 0644) < 0;
}
"#;

// attack C1, C2; rule F4
#[test]
fn c2_sockets_and_pipes_never_block() {
    as_user_too();
    for strategy in STRATEGIES {
        let scene = Scene::with(strategy, |app| compile(app, "bind", BIND));
        let script = "mkfifo pipe; ./bind sock; rm a.txt; mkfifo a.txt; echo x > plain";
        assert_eq!(scene.run(script).status, 0);
        scene.unharmed();
        scene.cli.ok("diff try --patch");
        let commit = scene.cli.expect("commit try", 0);
        let told = [commit.stdout_text(), commit.stderr_text()].concat();
        assert!(told.contains("sock"), "what is left out is named: {told}");
        let now = signature(&scene.app);
        assert_eq!(now[&b"pipe"[..]].kind, Kind::Fifo);
        assert_eq!(now[&b"a.txt"[..]].kind, Kind::Fifo);
        assert_eq!(read(scene.app.join("plain")), "x\n");
        assert_quiet(&scene.world);
    }
}

const BIND: &str = r#"
int main(int argc, char **argv) {
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    strcpy(at.sun_path, argv[1]);
    return bind(socket(AF_UNIX, SOCK_STREAM, 0), (struct sockaddr *)&at, sizeof at) != 0;
}
"#;

/// Names that talk to the terminal on which the question is asked.
// attack A11
#[test]
fn a11_names_that_talk_to_the_terminal() {
    as_user_too();
    let scene = Scene::new("overlay");
    let terminal = Terminal::new(24, 80);
    let script =
        r#"printf 'text \033]0;evil\007 \033[2J\n' > "$(printf 'name\033]0;evil\007\033[2J')""#;
    let mut child = terminal.start(scene.cli.command(in_try(script)));
    terminal.expect("[x]discard [?]");
    terminal.talk("d\n", &["+text", "[x]discard [?]"]);
    terminal.send("x\n");
    assert!(child.wait().expect("it ends").success());
    let text = terminal.text();
    lacks(&text, ["\x1b]0;", "\x1b[2J"]);
    scene.unharmed();
}

/// Names that are Escrow's own beside an original.
#[test]
fn names_that_look_like_ours_take_nothing_with_them() {
    as_user_too();
    for strategy in STRATEGIES {
        let scene = Scene::new(strategy);
        let other = scene.cli.run("plan create other --resource ../beside");
        assert_eq!(other.status, 0);
        let sandboxes = fs::read_dir(scene.world.home().join("sandboxes"));
        let names: Vec<String> = sandboxes
            .expect("they are there")
            .map(|entry| entry.expect("listed").file_name())
            .map(|name| name.to_string_lossy().into_owned())
            .collect();
        let cli = scene.cli.clone().env("ESCROW_NAMES", names.join(" "));
        let script = "mkdir .escrow-probe-mine upper work; for n in $ESCROW_NAMES; do
            mkdir .escrow-$n .escrow-$n.undo; echo x > .escrow-$n/upper; done; echo y > f";
        cli.expect(in_try(script), 0);
        let listed = scene.cli.ok("diff try --name-status");
        scene.cli.ok("commit try");
        for line in listed.lines() {
            let path = line.split_once('\t').expect("a letter and a path").1;
            assert!(scene.app.join(path).exists(), "{strategy}: {line}");
        }
        assert_eq!(read(scene.app.join("f")), "y\n");
        scene.cli.ok("cleanup try");
        scene.cli.ok("diff other");
        assert_eq!(read(scene.beside.join("file")), "precious\n");
        let there = Command::new("ls").arg("-A").arg(&scene.app).output();
        let there = there.expect("there is an ls").stdout;
        assert!(String::from_utf8_lossy(&there).contains("upper"));
    }
}

/// What was trusted is a name; a link in the tree must not lead it elsewhere.
// rule S2
#[test]
fn a_trusted_path_that_became_a_link() {
    as_user_too();
    let (world, cli) = world();
    let (app, secrets) = (world.at("app"), world.dir("secrets"));
    write(app.join("escrow.yaml"), "run: {writable: [cache]}\n");
    fs::create_dir(app.join("cache")).expect("it is new");
    cli.trust();
    let script = "echo x > cache/x";
    cli.ok(inside("run --rollback", script));
    assert_eq!(read(app.join("cache/x")), "x\n", "it can be written");
    fs::remove_dir_all(app.join("cache")).expect("it is ours");
    symlink("../secrets", app.join("cache"));
    let said = cli.fails(inside("run --rollback", script), 125);
    has(&said, ["names a symbolic link in a resource"]);
    assert!(!secrets.join("x").exists());
}
