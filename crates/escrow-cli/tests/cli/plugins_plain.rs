//! A class with exactly the nine verbs: what becomes of a plan when its `commit` raises, dies or never answers.

use crate::*;

const PLAIN_DIRECTORY: &str =
    include_str!("../../../../examples/strategies/python/plain_directory.py");

/// It can neither prepare nor undo, and does in `commit` what a file beside it says.
const NINE: &str = r#"
import os, shutil, time
from plain_directory import PlainDirectory

class Nine(PlainDirectory):
    prepare = undo = preview = fixture = fixture_contents = fixture_change = retain = None

    def create(self, plan_id, resource):
        made = super().create(plan_id, resource)
        made.metadata["area"] = resource.area
        return made

    def commit(self, ref):
        mode = open("mode").read()
        if mode == "raises":
            raise RuntimeError("the registry says 500")
        if mode == "dies":
            os._exit(3)
        if mode == "hangs":
            time.sleep(600)
        shutil.copytree(ref.metadata["area"] + "/work", ref.metadata["original"], dirs_exist_ok=True)
"#;

fn nine() -> (World, Cli) {
    let (world, cli) = furnish(World::new());
    for name in ["app", "registry"] {
        write(world.dir(name).join("file"), "old\n");
    }
    write(world.at("plain_directory.py"), PLAIN_DIRECTORY);
    write(world.at("nine.py"), NINE);
    let custom = "{nine: {module: nine, class: Nine, timeout: {commit: 1s}}}";
    write(
        world.at("escrow.yaml"),
        format!("sandbox: {{custom_strategies: {custom}}}\n"),
    );
    cli.trust();
    json(&cli, "plan create p --resource ./app");
    json(&cli, "sandbox create p ./registry --strategy nine");
    for name in ["app", "registry"] {
        put(&cli, &format!("p {name} file"), "new\n");
    }
    (world, cli)
}

fn both(world: &World) -> [String; 2] {
    ["app", "registry"].map(|name| text(&world.at(name).join("file")))
}

fn text(path: &Path) -> String {
    fs::read_to_string(path).expect("it is there")
}

// rule C4, C8, C19
#[test]
fn a_commit_that_raises_did_nothing_and_the_others_are_taken_back() {
    as_user_too();
    let (world, cli) = nine();
    write(world.at("mode"), "raises");
    let said = cli.fails("commit p --yes", 1);
    has(&said, ["the registry says 500"]);
    assert_eq!(both(&world), ["old\n"; 2]);
    cli.says("recover", "");
    assert_eq!(cli.ok("read p app file"), "new\n");
    write(world.at("mode"), "works");
    cli.ok("commit p --yes");
    assert_eq!(both(&world), ["new\n"; 2]);
}

// rule C18, C19
#[test]
fn a_commit_that_dies_or_hangs_is_settled_by_a_person_and_not_done_takes_the_rest_back() {
    as_user_too();
    for mode in ["dies", "hangs"] {
        for outcome in ["not_done", "done"] {
            let (world, cli) = nine();
            write(world.at("mode"), mode);
            let said = cli.fails("commit p --yes", 5);
            has(
                &said,
                [
                    "escrow recover --outcome registry=done",
                    "registry=not_done",
                ],
            );
            assert_eq!(both(&world), ["new\n", "old\n"], "{mode}");
            let said = json(&cli, &format!("recover --outcome registry={outcome}"));
            let side = &said["recovered"][0]["side"];
            if outcome == "done" {
                assert_eq!(side, "new", "{mode}: {said}");
                assert_eq!(both(&world), ["new\n", "old\n"], "{mode}");
                continue;
            }
            assert_eq!(side, "old", "{mode}: {said}");
            assert_eq!(both(&world), ["old\n"; 2], "{mode}");
            write(world.at("mode"), "works");
            cli.ok("commit p --yes");
            assert_eq!(both(&world), ["new\n"; 2], "{mode}");
        }
    }
}

// rule X2
#[test]
fn a_class_whose_methods_cannot_be_called_is_refused_before_anything_is_made() {
    as_user_too();
    let (world, cli) = nine();
    let wrong = "from nine import Nine\nclass Wrong(Nine):\n    def commit(self, ref, transaction): pass\n    \
        def read(self, ref, name): raise SystemExit('it was called')\n";
    write(world.at("wrong.py"), wrong);
    let before = world.areas();
    let line = "plan create q --resource ./registry --strategy wrong:Wrong";
    let said = cli.fails(line, 1);
    has(&said, ["Wrong.read asks for 'name'", "ref, area, path"]);
    assert_eq!(world.areas(), before);
}
