//! Strategies of the user's own, from configuration alone: found by every way to name one, through the SDK and without it.

use std::io::Write as _;

use escrow_testkit::s3::S3;

use crate::*;

/// The examples that are shipped.
fn example(name: &str) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    root.join("examples/strategies").join(name)
}

/// The one in Python; an ordinary user may not be able to read the repository.
const PLAIN_DIRECTORY: &str =
    include_str!("../../../../examples/strategies/python/plain_directory.py");

const PODMAN_IMAGE: &str =
    include_str!("../../../../examples/strategies/container/podman_image.py");

const PLAIN: &str =
    "sandbox: {custom_strategies: {plain: {module: plain_directory, class: PlainDirectory}}}\n";

/// A world with a directory and the example strategy beside it, trusted.
fn furnished(config: &str) -> (World, Cli) {
    let (world, cli) = furnish(World::new());
    let app = world.dir("app");
    write(app.join("file"), "old\n");
    write(world.at("plain_directory.py"), PLAIN_DIRECTORY);
    write(world.at("escrow.yaml"), config);
    cli.trust();
    (world, cli)
}

#[track_caller]
fn strategy_of(cli: &Cli, line: &str) -> String {
    let plan = json(cli, line);
    let name = plan["sandboxes"][0]["strategy"].as_str();
    let name = name.unwrap_or_else(|| panic!("{line}: {plan}")).to_owned();
    cli.ok(["cleanup", plan["name"].as_str().expect("it has one")]);
    name
}

// rule P1, P7, X3
#[test]
fn a_strategy_of_ones_own_is_found_by_every_way_to_name_it() {
    let typed = "plan create p --resource ./app --strategy plain";
    let usual = "plan create p --resource ./app";
    let named = "plan create p --resource app";
    let class = "plain_directory:PlainDirectory";
    let with = |more: &str| PLAIN.replace("{custom", &format!("{{{more}custom"));
    for (config, line, wanted) in [
        (PLAIN.to_owned(), typed, "plain"),
        (with("strategy: plain, "), usual, "plain"),
        (format!("sandbox: {{strategy: '{class}'}}\n"), usual, class),
        (
            format!("{PLAIN}resources: {{app: {{at: app, strategy: plain}}}}\n"),
            named,
            "plain",
        ),
        (
            format!(
                "{PLAIN}resource_types: [{{name: t, sandbox_strategy: plain}}]\nresources: {{app: {{type: t, at: app}}}}\n"
            ),
            named,
            "plain",
        ),
        (
            format!(
                "{PLAIN}resource_types: [{{name: t, location: path, sandbox_strategy: plain}}]\nresources: {{app: {{type: t, at: app}}}}\n"
            ),
            named,
            "plain",
        ),
        (
            "{}".to_owned(),
            &format!("{usual} --strategy {class}"),
            class,
        ),
        (
            "sandbox: {custom_strategies: {thin: {alias_of: overlay}}}\n".to_owned(),
            &format!("{usual} --strategy thin"),
            "thin",
        ),
    ] {
        let (_world, cli) = furnished(&config);
        assert_eq!(strategy_of(&cli, line), wanted, "{config}");
    }
}

// rule P2, P3, P9, X3
#[test]
fn a_strategy_of_ones_own_lives_its_whole_life() {
    as_user_too();
    let (world, cli) = furnished(PLAIN);
    world.dir("beside");
    write(world.at("beside/file"), "old\n");
    let line = "plan create p --resource ./app --strategy plain";
    let plan = json(&cli, line);
    assert_eq!(plan["sandboxes"][0]["strategy"], "plain", "{plan}");
    json(&cli, "sandbox create p ./beside --strategy copy_on_write");
    // From anywhere: the plan knows under which configuration it was made.
    let elsewhere = cli.clone().cwd("/");
    put(&elsewhere, "p app file", "new\n");
    let large = vec![7u8; 1_000_000];
    put(&elsewhere, "p app deep/large", &large);
    put(&elsewhere, "p beside file", "new\n");
    let read = elsewhere.run("read p app deep/large");
    assert_eq!(read.stdout, large);
    let kept = json(&elsewhere, "checkpoint create p -m first");
    let kept = kept["checkpoint_id"].as_str().expect("an id");
    put(&elsewhere, "p app file", "later\n");
    json(&elsewhere, &format!("restore p {kept}"));
    assert_eq!(elsewhere.ok("read p app file"), "new\n");
    let diff = json(&elsewhere, "diff p");
    assert!(diff["digest"].is_string(), "{diff}");
    let digest = diff["digest"].as_str().expect("a text").to_owned();
    let done = json(&elsewhere, &format!("commit p --expect {digest} -m said"));
    assert_eq!(done["committed"], true, "{done}");
    for name in ["app/file", "beside/file"] {
        assert_eq!(read_text(&world.at(name)), "new\n");
    }
    json(&elsewhere, "undo p");
    assert_eq!(read_text(&world.at("app/file")), "old\n");
    assert!(!world.at("app/deep/large").exists());
    // The copy holds its changes again; a strategy of one's own has no sandbox any more.
    assert_eq!(elsewhere.ok("read p beside file"), "new\n");
    json(&elsewhere, "cleanup p");
    assert_eq!(world.areas(), [""; 0]);
    let left = names(world.at("app"));
    assert!(left.iter().all(|name| !name.ends_with(".part")), "{left:?}");
}

fn read_text(path: &Path) -> String {
    fs::read_to_string(path).expect("it is there")
}

// rule C15
#[test]
fn a_change_by_another_program_stops_a_commit_of_ones_own_strategy() {
    as_user_too();
    let (world, cli) = furnished(PLAIN);
    json(&cli, "plan create p --resource ./app --strategy plain");
    put(&cli, "p app file", "new\n");
    write(world.at("app/file"), "theirs\n");
    let refused = failed(&cli, "commit p", 4);
    assert_eq!(refused["conflicts"][0]["path"], "file", "{refused}");
    assert_eq!(read_text(&world.at("app/file")), "theirs\n");
    json(&cli, "commit p --on-conflict sandbox");
    assert_eq!(read_text(&world.at("app/file")), "new\n");
}

// rule X2, P2, P7
#[test]
fn an_incomplete_class_is_refused_with_what_lacks_and_an_unknown_name_with_the_known_ones() {
    as_user_too();
    let (world, cli) = furnished(PLAIN);
    let lacking = "class Half:\n    def __init__(self): raise SystemExit('an instance was made')\n    \
        def create(self, plan_id, resource): pass\n    def read(self, ref, path): pass\n";
    write(world.at("half.py"), lacking);
    let error = json_error(
        &cli,
        "plan create p --resource ./app --strategy half:Half",
        2,
    );
    let lacks = "it lacks write, diff, commit, rollback, checkpoint, restore_checkpoint, cleanup";
    has(&error, ["half:Half", lacks]);
    let error = json_error(&cli, "plan create p --resource ./app --strategy plian", 2);
    has(&error, ["there is no strategy 'plian'", "plain", "overlay"]);
    let error = json_error(
        &cli,
        "plan create p --resource ./app --strategy nothing:There",
        1,
    );
    has(&error, ["nothing:There", "No module named 'nothing'"]);
    assert_eq!(world.areas(), [""; 0]);
}

// rule X3
#[test]
fn a_program_of_a_tree_is_not_started_before_it_is_trusted() {
    let (world, cli) = furnish(World::new());
    write(world.dir("app").join("file"), "old\n");
    let command = format!("[touch, {}]", world.at("started").display());
    write(
        world.at("escrow.yaml"),
        format!(
            "sandbox: {{custom_strategies: {{mine: {{command: {command}}}}}}}\nresources: {{app: {{at: app, strategy: mine}}}}\n"
        ),
    );
    json_error(&cli, "plan create p --resource app", 3);
    let error = json_error(&cli, "plan create p --resource ./app --strategy mine", 3);
    has(&error, ["mine", "do not trust"]);
    cli.ok("strategy list");
    cli.ok("status");
    assert!(!world.at("started").exists());
    cli.trust();
    cli.ok("status");
    assert!(!world.at("started").exists());
    let error = json_error(&cli, "plan create p --resource ./app --strategy mine", 1);
    has(&error, ["'mine'", "it ended"]);
    assert!(world.at("started").exists());
}

/// A module that notes that it was loaded, in the file `started` beside it.
const EVIL: &str =
    "import pathlib\npathlib.Path(__file__).parent.joinpath('started').touch()\nclass C: pass\n";

/// A type of a tree named programs as those that `auto` takes, and `none`, and was obeyed.
// rule X3, S6
#[test]
fn a_type_of_a_tree_starts_no_program_and_takes_no_isolation_away() {
    as_user_too();
    // `run` has a /tmp of its own.
    let (world, cli) = furnish(World::under(Path::new("/var/tmp")));
    let kind = |strategies: &str| {
        let list = format!("resource_types: [{{name: t, location: path, {strategies}}}]\n");
        format!("{list}resources: {{sub: {{at: sub, type: t}}}}\n")
    };
    let custom = |what: &str| format!("sandbox: {{custom_strategies: {{m: {what}}}}}\n");
    let listed = kind("sandbox_strategy: git_worktree, strategies: [git_worktree, m]");
    let derived = "resource_types:\n  - {name: s, location: path, sandbox_strategy: git_worktree, strategies: ['evil:C']}\n  \
        - {name: t, extends: s, strategies: [git_worktree, 'evil:C']}\nresources: {sub: {at: sub, type: t}}\n";
    for (number, config) in [
        kind("sandbox_strategy: git_worktree, strategies: ['evil:C']"),
        kind("sandbox_strategy: 'evil:C'"),
        kind("sandbox_strategy: git_worktree, strategies: [none]"),
        kind("sandbox_strategy: 'evil:C'").replace("location: path", "extends: git-checkout"),
        format!("{}{listed}", custom("{module: evil, class: C}")),
        format!("{}{listed}", custom("{command: [python3, evil.py]}")),
        format!("{}{listed}", custom("{alias_of: none}")),
        derived.to_owned(),
    ]
    .into_iter()
    .enumerate()
    {
        let app = world.dir(format!("tree{number}"));
        write(world.dir(format!("tree{number}/sub")).join("file"), "old\n");
        write(app.join("evil.py"), EVIL);
        write(app.join("escrow.yaml"), &config);
        let cli = cli.clone().cwd(&app);
        let mut told = String::new();
        for line in ["run", "run --resource ./sub", "run --resource sub"] {
            let outcome = cli.run(inside(line, "echo changed > sub/file"));
            told.push_str(&outcome.stderr_text());
        }
        assert!(!app.join("started").exists(), "{config}{told}");
        assert_eq!(read_text(&app.join("sub/file")), "old\n", "{config}{told}");
        has(&told, ["`escrow trust '"]);
    }
}

/// The directory of a plan came first on the search path: a file in the tree stood for the SDK, a part of Python, or the user's class.
// rule X3
#[test]
fn a_file_of_a_tree_does_not_stand_for_the_users_class_or_the_sdk() {
    as_user_too();
    let (world, cli) = furnish(World::new());
    // A name that is no UTF-8, and ends a list of paths.
    let odd = OsStr::from_bytes(b"user-home/.config/od\xff:d");
    let own = world.at("user-home/.config/escrow");
    fs::create_dir_all(world.at("user-home/.config")).expect("there is room");
    fs::create_dir_all(world.path().join(odd)).expect("there is room");
    symlink(OsStr::from_bytes(b"od\xff:d"), &own);
    write(own.join("plain_directory.py"), PLAIN_DIRECTORY);
    let class = "plain_directory:PlainDirectory";
    write(
        own.join("escrow.yaml"),
        format!("sandbox: {{strategy: '{class}'}}\n"),
    );
    let tree = world.dir("tree");
    for name in [
        "plain_directory",
        "escrow_plugin",
        "json",
        "shutil",
        "encodings",
    ] {
        write(tree.join(format!("{name}.py")), EVIL);
    }
    write(tree.join("escrow.yaml"), "run: {network: none}\n");
    write(tree.join("file"), "old\n");
    let cli = cli.cwd(&tree);
    assert_eq!(strategy_of(&cli, "plan create p --resource ."), class);
    assert!(!tree.join("started").exists());
    // A class that nothing else has is that of the tree: the user named it.
    write(
        tree.join("own.py"),
        format!("from plain_directory import PlainDirectory\n{EVIL}"),
    );
    let error = json_error(&cli, "plan create p --resource . --strategy own:C", 2);
    has(&error, ["own:C", "it lacks"]);
    assert!(tree.join("started").exists());
}

// rule P1, X4
#[test]
fn the_examples_pass_the_whole_suite() {
    let (world, cli) = furnished(&format!(
        "sandbox:\n  custom_strategies:\n    plain: {{module: plain_directory, class: PlainDirectory}}\n    \
         notes: {{command: [node, {}]}}\n",
        example("node/notes.js").display()
    ));
    for name in ["plain", "notes"] {
        let report = json(&cli, &format!("strategy check {name}"));
        assert_eq!(report["conforms"], true, "{report:#}");
        assert!(list(&report["checks"]).len() > 35, "{report:#}");
    }
    assert_eq!(world.areas(), [""; 0]);
}

// rule P1, C15, X4
#[test]
fn the_bucket_of_the_examples_passes_the_whole_suite() {
    let server = S3::new();
    let (world, cli) = furnish(World::new());
    let example = example("s3/versioned_bucket.py");
    fs::copy(example, world.at("versioned_bucket.py")).expect("there is room");
    let config = format!(
        "sandbox: {{custom_strategies: {{s3: {{module: versioned_bucket, class: VersionedBucket, \
         options: {{endpoint: '{}', region: us-east-1}}, env: {{AWS_ACCESS_KEY_ID: test, AWS_SECRET_ACCESS_KEY: }}}}}}}}\n",
        server.address
    );
    write(world.at("escrow.yaml"), config);
    let cli = cli.env("PATH", server.path());
    // Of one credential the caller has the value.
    let cli = cli.env("AWS_SECRET_ACCESS_KEY", "secret");
    cli.trust();
    let report = json(&cli, "strategy check s3");
    assert_eq!(report["conforms"], true, "{report:#}");
    assert!(list(&report["checks"]).len() > 35, "{report:#}");
    // Of the sandboxes that it made nothing is left.
    let (_, buckets) = server.ask("GET", "/", "");
    let names = buckets.split("<Name>").skip(1);
    let names: Vec<&str> = names.filter_map(|one| one.split('<').next()).collect();
    assert!(names.len() > 35, "{buckets}");
    for name in names {
        assert_eq!(server.versions(name, ".escrow/"), 0, "{name}");
    }
}

// rule P6, C17
#[test]
fn a_bucket_that_does_not_exist_leaves_no_plan() {
    let server = S3::new();
    let (world, cli) = furnish(World::new());
    let example = example("s3/versioned_bucket.py");
    fs::copy(example, world.at("versioned_bucket.py")).expect("there is room");
    write(world.dir("app").join("file"), "old\n");
    let config = |address: &str| {
        format!(
            "sandbox: {{custom_strategies: {{s3: {{module: versioned_bucket, class: VersionedBucket, \
             options: {{endpoint: '{address}', region: us-east-1}}, env: {{AWS_ACCESS_KEY_ID: test, AWS_SECRET_ACCESS_KEY: test}}}}}}}}\n\
             resource_types: [{{name: s3-bucket, location: url, sandbox_strategy: s3}}]\n\
             resources: {{app: {{at: app}}, objects: {{at: 's3://nowhere', type: s3-bucket}}}}\n"
        )
    };
    let cli = cli.env("PATH", server.path());
    // Nor does a server that cannot be reached.
    for (address, wanted) in [
        (server.address.as_str(), "NoSuchBucket"),
        ("http://127.0.0.1:1", "reached"),
    ] {
        write(world.at("escrow.yaml"), config(address));
        cli.trust();
        let said = cli.fails("plan create zz --resource app --resource objects", 1);
        has(&said, ["the bucket cannot be reached", wanted]);
        has(&cli.fails("plan show zz", 1), ["there is no plan"]);
        assert_eq!(json(&cli, "status")["unfinished"], value!([]));
        assert_eq!(world.areas(), [""; 0]);
        cli.ok("plan create q --resource app");
        cli.fails("sandbox create q objects", 1);
        assert_eq!(list(&json(&cli, "sandbox list q")["sandboxes"]).len(), 1);
        cli.ok("cleanup q --yes");
    }
    // One that was there, and is not any more.
    server.bucket("nowhere");
    write(world.at("escrow.yaml"), config(&server.address));
    cli.trust();
    cli.ok("plan create zz --resource app --resource objects");
    assert_eq!(server.ask("DELETE", "/nowhere", "").0, 204);
    cli.ok("cleanup zz --yes");
}

/// The program hears of it, ends the call itself, and is asked for the next one.
const SLOW: &str = r#"
import os, time
from escrow_plugin import Cancelled, check_cancelled
from plain_directory import PlainDirectory

class Slow(PlainDirectory):
    def rollback(self, ref):
        if not os.path.exists("begun"):
            open("begun", "w").close()
            try:
                while True:
                    time.sleep(0.02)
                    check_cancelled()
            except Cancelled:
                open("heard", "w").close()
                raise
        super().rollback(ref)
"#;

// rule S5, X1
#[test]
fn an_interrupt_reaches_the_program_which_ends_its_call_itself() {
    let (world, cli) = furnished(&PLAIN.replace(
        "module: plain_directory, class: PlainDirectory",
        "module: slow, class: Slow",
    ));
    write(world.at("slow.py"), SLOW);
    json(&cli, "plan create p --resource ./app --strategy plain");
    put(&cli, "p app file", "new\n");
    let child = cli.start("rollback p --yes");
    let pid = rustix::process::Pid::from_child(&child);
    let until = Instant::now() + Duration::from_secs(60);
    while !world.at("begun").exists() {
        assert!(Instant::now() < until, "it does not begin");
        std::thread::sleep(Duration::from_millis(10));
    }
    rustix::process::kill_process(pid, rustix::process::Signal::INT).expect("it is ours");
    let ended = child.wait_with_output().expect("it ends");
    assert!(!ended.status.success(), "{ended:?}");
    assert!(world.at("heard").exists(), "{ended:?}");
    cli.ok("recover");
    json(&cli, "rollback p --yes");
    assert_eq!(cli.ok("read p app file"), "old\n");
}

/// Images of podman in a storage of their own, whose names it wants short; without root podman leaves a process, which ends with this.
struct Podman {
    command: Vec<String>,
    pause: PathBuf,
}

impl Podman {
    fn new(world: &World) -> Self {
        let runtime = world.dir("runtime");
        let at = |name: &str| world.at(name).display().to_string();
        let command = ["podman", "--storage-driver", "vfs", "--root"].map(str::to_owned);
        let mut command = command.to_vec();
        command.extend([at("images"), "--runroot".to_owned(), at("r")]);
        Self {
            command,
            pause: runtime.join("libpod/tmp/pause.pid"),
        }
    }

    #[track_caller]
    fn ask(&self, line: &str) -> String {
        let runtime = self.pause.ancestors().nth(3).expect("it has one");
        let mut command = Command::new(&self.command[0]);
        command.args(&self.command[1..]).args(line.split(' '));
        let said = output_of(command.env("XDG_RUNTIME_DIR", runtime));
        said.trim_end().to_owned()
    }
}

impl Drop for Podman {
    fn drop(&mut self) {
        if let Ok(pause) = fs::read_to_string(&self.pause) {
            let done = Command::new("kill").args(["-9", pause.trim()]).status();
            assert!(done.expect("kill starts").success(), "{pause}");
        }
    }
}

/// The whole suite takes podman minutes: `make torture` runs it.
// rule C1, C10, P2
#[test]
fn an_image_of_podman_is_released_with_a_directory_and_taken_back() {
    as_user_too();
    let (world, cli) = furnish(World::new());
    let podman = Podman::new(&world);
    write(world.dir("app").join("file"), "old\n");
    write(world.at("podman_image.py"), PODMAN_IMAGE);
    let command = serde_json::to_string(&podman.command).expect("texts");
    let config = format!(
        "sandbox: {{custom_strategies: {{image: {{module: podman_image, class: PodmanImage, options: {{podman: {command}}}, \
         env: {{XDG_RUNTIME_DIR: '{}'}}}}}}}}\n\
         resource_types: [{{name: container-image, location: opaque, sandbox_strategy: image}}]\n\
         resources: {{app: {{at: app}}, image: {{type: container-image, at: 'localhost/app:1'}}}}\n",
        world.at("runtime").display()
    );
    write(world.at("escrow.yaml"), config);
    cli.trust();
    let mut tar = Command::new("tar");
    tar.args(["--owner=0", "--group=0", "-cf"]);
    tar.arg(world.at("app.tar")).arg("-C").arg(world.at("app"));
    let done = tar.arg("file").status();
    assert!(done.expect("tar starts").success());
    podman.ask(&format!(
        "import --change CMD=sh {} localhost/app:1",
        world.at("app.tar").display()
    ));
    let before = podman.ask("image inspect --format {{.Id}} localhost/app:1");
    json(&cli, "plan create p --resource app --resource image");
    for resource in ["app", "image"] {
        put(&cli, &format!("p {resource} file"), "new\n");
    }
    let kept = json(&cli, "checkpoint create p");
    put(&cli, "p image deep/more", "more\n");
    let kept = kept["checkpoint_id"].as_str().expect("an id");
    json(&cli, &format!("restore p {kept}"));
    let listed = cli.ok("diff p --name-status");
    assert_eq!(listed, "# app\nM\tfile\n# image\nM\tfile\n");
    assert_eq!(json(&cli, "commit p")["committed"], true);
    let look = |image: &str| {
        podman.ask(&format!("create --replace --name look {image}"));
        podman.ask("cp look:/file -")
    };
    let now = look("localhost/app:1");
    assert!(now.contains("new\n") && !now.contains("old\n"), "{now}");
    assert_eq!(read_text(&world.at("app/file")), "new\n");
    // Nothing of it is left but the image, and the one before.
    assert_eq!(podman.ask("ps -a --format {{.Names}}"), "look");
    let names = podman.ask("images --filter dangling=false --format {{.Repository}}:{{.Tag}}");
    assert_eq!(names, "localhost/app:1");
    json(&cli, "undo p");
    assert_eq!(read_text(&world.at("app/file")), "old\n");
    let after = podman.ask("image inspect --format {{.Id}} localhost/app:1");
    assert_eq!(after, before);
}

/// The tests that come with the SDK, run without pytest.
// rule X4
#[test]
fn the_tests_of_the_sdk_pass() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../sdk/python");
    let script = [
        "import inspect, pathlib, tempfile, test_sdk",
        "for name, test in list(vars(test_sdk).items()):",
        "    if name.startswith('test_'):",
        "        with tempfile.TemporaryDirectory() as place:",
        "            needs = inspect.signature(test).parameters",
        "            test(pathlib.Path(place)) if needs else test()",
        "        print(name)",
    ];
    let path = format!(
        "{}:{}",
        root.join("src").display(),
        root.join("tests").display()
    );
    let output = Command::new("python3")
        .args(["-c", &script.join("\n")])
        .env("PYTHONPATH", path)
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env("ESCROW", binary())
        .output()
        .expect("there is Python");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{said}");
    let passed = String::from_utf8_lossy(&output.stdout).lines().count();
    assert!(passed >= 5, "{passed}: {said}");
}

/// What the SDK says when it is asked what nobody asks: it answers each line once, and goes on.
// rule X4
#[test]
fn the_sdk_survives_rubbish_from_the_engine_side() {
    let (world, _cli) = furnished(PLAIN);
    let sdk = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../sdk/python/src");
    let mut lines: Vec<String> = [
        "",
        "[]",
        "null",
        "{",
        "{}",
        "\u{0}",
        r#"{"jsonrpc":"2.0","id":1}"#,
    ]
    .map(str::to_owned)
    .to_vec();
    let methods = [
        "initialize",
        "create",
        "read",
        "commit",
        "nothing",
        "__init__",
        "fixture",
    ];
    let values = [
        "null",
        "[]",
        "{}",
        "17",
        r#"{"ref":1}"#,
        r#"{"ref":{}}"#,
        r#"{"path":"\\x"}"#,
        r#"{"content":{"file":"../x"}}"#,
    ];
    for (number, method) in methods.iter().enumerate() {
        for (more, value) in values.iter().enumerate() {
            let id = number * 100 + more;
            lines.push(format!(
                r#"{{"jsonrpc":"2.0","id":{id},"method":"{method}","params":{value}}}"#
            ));
        }
    }
    let count = lines.len();
    let last = r#"{"jsonrpc":"2.0","id":"last","method":"initialize","params":{}}"#;
    let input = format!("{}\n{last}\n", lines.join("\n"));
    let mut child = Command::new("python3")
        .args(["-m", "escrow_plugin", "plain_directory:PlainDirectory"])
        .current_dir(world.path())
        .env("PYTHONPATH", sdk)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("there is Python");
    let mut to = child.stdin.take().expect("it is piped");
    let writer = std::thread::spawn(move || to.write_all(input.as_bytes()).expect("it reads"));
    let output = child.wait_with_output().expect("it ends");
    writer.join().expect("it wrote");
    assert!(output.status.success(), "{:?}", output.status);
    let text = String::from_utf8(output.stdout).expect("it is text");
    let answers: Vec<Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).expect("a message"))
        .collect();
    assert_eq!(answers.len(), count + 1, "{text}");
    assert!(
        answers
            .iter()
            .any(|one| one["id"] == "last" && one["result"]["protocol_version"] == 1)
    );
}
