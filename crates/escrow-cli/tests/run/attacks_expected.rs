//! Sandboxes that are changed between what a person saw and the commit: `commit --expect`, and the question at a terminal.

use std::io::{IoSlice, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

use crate::attacks::{Scene, compile};
use crate::attacks_descriptors::{READING, attack, bug, handed_out, sandboxed, scene};
use crate::*;

/// Gets descriptors through its standard input, opens each again for writing, and says how many it wrote to.
const REOPEN: &str = r#"
int main(void) {
    int fds[16], written = 0;
    char byte, room[CMSG_SPACE(sizeof fds)], path[64];
    struct iovec part = {&byte, 1};
    struct msghdr all = {0, 0, &part, 1, room, sizeof room, 0};
    if (recvmsg(0, &all, 0) != 1) return 1;
    struct cmsghdr *one = CMSG_FIRSTHDR(&all);
    int count = (one->cmsg_len - CMSG_LEN(0)) / sizeof *fds;
    memcpy(fds, CMSG_DATA(one), count * sizeof *fds);
    for (int i = 0; i < count; i++) {
        sprintf(path, "/proc/self/fd/%d", fds[i]);
        int fd = open(path, O_WRONLY | O_APPEND);
        if (fd >= 0) written += write(fd, "evil\n", 5) == 5;
        fd = openat(fds[i], "evil", O_WRONLY | O_CREAT, 0644);
        if (fd >= 0) written++;
    }
    printf("wrote %d\n", written);
    return 0;
}
"#;

/// A command of another plan gets these descriptors; how many it could write.
fn handed_to_another_plan(scene: &Scene, fds: &[OwnedFd]) -> String {
    let (ours, theirs) = UnixStream::pair().expect("there are sockets");
    let run = words("-q run --plan other -- ./reopen");
    let mut command = scene.cli.command(run);
    command
        .current_dir(&scene.app)
        // Which would stop it too, whatever the first one does.
        .env("ESCROW_SEEDED_BUG", "no-second-wall")
        .stdin(Stdio::from(OwnedFd::from(theirs)))
        .stdout(Stdio::piped());
    let mut child = command.spawn().expect("it can be started");
    drop(command);
    let fds: Vec<BorrowedFd<'_>> = fds.iter().map(AsFd::as_fd).collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(16))];
    let mut with = SendAncillaryBuffer::new(&mut space);
    assert!(with.push(SendAncillaryMessage::ScmRights(&fds)));
    sendmsg(&ours, &[IoSlice::new(b"x")], &mut with, SendFlags::empty()).expect("it listens");
    let mut said = String::new();
    let mut output = child.stdout.take().expect("it is piped");
    output.read_to_string(&mut said).expect("it ends");
    assert!(child.wait().expect("it is ours").success());
    said
}

/// The digest of what would be released.
fn digest(cli: &Cli) -> String {
    let document = json(cli, "diff try");
    document["digest"].as_str().expect("it has one").to_owned()
}

/// Through the mount that its command saw, a copy cannot be written any more when the last command has ended.
// attack D14; rule C2
#[test]
fn d14_a_copy_was_written_by_another_plan_between_diff_and_commit() {
    as_user_too();
    for wall in [true, false] {
        if !wall && !cfg!(feature = "seeded-bugs") {
            return skip("built without the feature seeded-bugs");
        }
        let scene = Scene::with("filesystem_copy", |app| {
            compile(app, "reopen", REOPEN);
            compile(app, "send", crate::attacks_descriptors::SEND);
        });
        let create = "plan create other --resource . --strategy filesystem_copy";
        scene.cli.ok(create);
        let cli = match wall {
            true => scene.cli.clone(),
            false => bug(&scene, "layers-left-open"),
        };
        let (fds, _) = handed_out(&scene, &cli, READING, |fds| fds);
        let before = digest(&scene.cli);
        let said = handed_to_another_plan(&scene, &fds);
        attack(&fds);
        match wall {
            true => {
                assert_eq!(said, "wrote 0\n");
                assert_eq!(digest(&scene.cli), before);
                scene.cli.ok(format!("commit try --expect {before}"));
                assert_eq!(read(scene.app.join("a.txt")), "agent\n");
            }
            // The control: the same attack works, and is refused by what was expected.
            false => {
                assert_ne!(said, "wrote 0\n");
                scene.cli.fails(format!("commit try --expect {before}"), 4);
                scene.unharmed();
            }
        }
    }
}

/// A command may make mounts of its own, and layers with a writer stay open: what is expected is what is released.
// attack D14; rule C2
#[test]
fn d14_what_was_expected_is_what_is_committed() {
    as_user_too();
    for (strategy, how) in [
        ("filesystem_copy", "nested r a.txt r new"),
        ("overlay", "w a.txt r new"),
    ] {
        let scene = scene(strategy);
        let before = signature(&scene.app);
        let (fds, _) = handed_out(&scene, &scene.cli, how, |fds| fds);
        let shown = digest(&scene.cli);
        attack(&fds[..1]);
        // Whatever another process looks at, or is given, or how conflicts are settled.
        scene.cli.ok("diff try --name-status");
        scene.cli.ok("diff try --json");
        if strategy == "filesystem_copy" {
            scene.cli.ok("path try app");
        }
        for more in [
            "",
            "--dry-run",
            "--on-conflict sandbox",
            "--on-conflict original",
        ] {
            let said = scene.cli.run(format!("commit try --expect {shown} {more}"));
            let text = said.stdout_text() + &said.stderr_text();
            assert_eq!(said.status, 4, "{strategy} {more}: {text}");
            assert!(text.contains("escrow diff try"), "{text}");
            assert!(!text.contains("on-conflict"), "{text}");
            unchanged(&before, &scene.app);
        }
        // Something new, in a directory that was handed out.
        let line = format!("commit try --expect {}", digest(&scene.cli));
        attack(&fds[1..]);
        scene.cli.fails(&line, 4);
        unchanged(&before, &scene.app);
        // The control.
        if cfg!(feature = "seeded-bugs") && strategy == "overlay" {
            bug(&scene, "expected-not-compared").ok(&line);
            continue;
        }
        // What was looked at again can be committed; the setuid bit goes, and nothing changes it later.
        scene
            .cli
            .ok(format!("commit try --expect {}", digest(&scene.cli)));
        let file = scene.app.join("a.txt");
        let mode = file.metadata().expect("it is there").mode();
        assert_eq!(mode & 0o6000, 0, "{strategy}");
        assert!(read(&file).contains("evil"));
        let released = signature(&scene.app);
        attack(&fds);
        unchanged(&released, &scene.app);
    }
}

/// Both questions at a terminal are about what was shown.
// attack D14; rule C2
#[test]
fn d14_what_changed_after_the_question_was_asked_is_not_released() {
    as_user_too();
    let scene = Scene::new("filesystem_copy");
    let terminal = Terminal::new(24, 200);
    let lines = [
        (in_try("echo agent > a.txt"), "[x]discard [?]", "c\n", 125),
        (words("commit try"), "[y/N]", "y\n", 4),
    ];
    for (line, question, answer, status) in lines {
        let mut child = terminal.start(scene.cli.command(line));
        terminal.expect(question);
        let file = sandboxed(&scene, "filesystem_copy");
        let length = read(&file).len();
        write(&file, "e".repeat(length));
        terminal.talk(answer, &["app:a.txt changed"]);
        let ended = child.wait().expect("it is ours");
        assert_eq!(ended.code(), Some(status));
        scene.unharmed();
        write(&file, "agent\n");
    }
    // Looked at again, it can be released.
    let mut child = terminal.start(scene.cli.command(in_try("true")));
    terminal.expect("[x]discard [?]");
    write(sandboxed(&scene, "filesystem_copy"), "other\n");
    terminal.talk("d\n", &["+other", "[x]discard [?]"]);
    terminal.talk("r\n", &["escrow undo try"]);
    assert!(child.wait().expect("it is ours").success());
    assert_eq!(read(scene.app.join("a.txt")), "other\n");
}
