//! After a power cut, what was synced is there and what was not is not.

use crate::*;

fn check(kind: Fs) {
    need!(require_stepper());
    let mut fs = need!(LoopFs::new(kind, 17));
    let root = fs.path().to_owned();
    let read = |name: &str| fs::read_to_string(root.join(name)).ok();
    fs::write(root.join("before"), "kept").expect("a file");
    let start = fs.disk_at_rest();
    let stepper = || {
        let mut command = Command::new("sh");
        let text =
            "echo one > synced; sync synced; echo two > written; echo three >> before; rmdir x";
        command.args(["-c", text]).current_dir(&root);
        Stepper::new(command).record()
    };
    let calls = stepper().run().calls;
    for _ in 0..2 {
        fs.boot(&start);
        assert_eq!(fs.path(), root);
        assert_eq!(
            (read("before"), read("synced")),
            (Some("kept".into()), None)
        );
        let mut cut = None;
        let run = stepper().stop_at(calls, |_| cut = Some(fs.disk_now()));
        assert_eq!(run.hit.map(|step| step.name), Some("rmdir"));
        assert_eq!(read("written").as_deref(), Some("two\n"));
        fs.boot(&cut.expect("the disk at the cut"));
        assert_eq!(read("synced").as_deref(), Some("one\n"));
        assert_eq!(read("written"), None);
        assert_eq!(read("before").as_deref(), Some("kept"));
        fs::write(root.join("after"), "usable").expect("a file system that goes on");
    }
}

#[test]
fn a_power_cut_on_each_file_system() {
    for kind in Fs::ALL {
        check(kind);
    }
}

#[test]
fn another_mount_namespace_delays_a_boot_and_no_device_is_left() {
    for kind in Fs::ALL {
        let mut fs = need!(LoopFs::new(kind, 17));
        let start = fs.disk_at_rest();
        fs::write(fs.path().join("later"), "").expect("a file");
        let mut other = Command::new("unshare")
            .args(["-m", "sh", "-c", "echo; exec sleep 0.3"])
            .stdout(Stdio::piped())
            .spawn()
            .expect("unshare starts");
        let mut line = [0];
        let stream = other.stdout.as_mut().expect("a pipe");
        std::io::Read::read_exact(stream, &mut line).expect("a line from within");
        fs.boot(&start);
        assert!(!fs.path().join("later").exists());
        other.wait().expect("a child");
        let image = fs.image();
        drop(fs);
        let left = Command::new("losetup").args(["-j"]).arg(&image).output();
        let left = left.expect("losetup starts").stdout;
        assert!(left.is_empty(), "{}", String::from_utf8_lossy(&left));
    }
}
