//! What a copy's checkpoint needs of its original: a touch that leaves everything as it was takes nothing from it, and a
//! change does.

use crate::checkpoints::{create, planned};
use crate::*;

fn shell(app: &Path, script: &str) {
    let mut shell = Command::new("sh");
    shell.arg("-ec").arg(script).current_dir(app);
    let status = shell.status().expect("sh is there");
    assert!(status.success(), "{script}");
}

/// Of files and of links; and by another plan, whose commit is undone.
const TOUCHES: [&str; 4] = [
    "chmod 600 a.txt; chmod 640 a.txt",
    "ln a.txt ../backup; rm ../backup; ln -P link ../other; rm ../other",
    "ln a.txt ../backup",
    "setfattr -n user.seen -v 1 a.txt; setfattr -x user.seen a.txt",
];

// rule F8, R1
#[test]
fn a_touch_of_the_original_costs_no_checkpoint() {
    as_user_too();
    for (number, strategy) in ["filesystem_copy", "copy_on_write"].into_iter().enumerate() {
        for touch in TOUCHES
            .into_iter()
            .skip(number)
            .step_by(2)
            .chain(["another plan"])
        {
            let how = format!("{strategy}: {touch}");
            let (world, cli) = planned(strategy);
            let app = world.at("app");
            create(&cli, "here");
            put(&cli, "try app a.txt", "x\n");
            cli.ok("-q run --plan try -- ln -sf elsewhere link");
            match touch {
                "another plan" => {
                    cli.ok("plan create other --resource . --strategy filesystem_copy");
                    put(&cli, "other app a.txt", "y\n");
                    cli.ok("commit other");
                    cli.ok("undo other");
                }
                script => shell(&app, script),
            }
            let forked = cli.run("plan fork try then --at here");
            assert_eq!(forked.status, 0, "{how}: {}", forked.stderr_text());
            let restored = cli.run("restore try here");
            assert_eq!(restored.status, 0, "{how}: {}", restored.stderr_text());
            for (plan, said) in [("then", forked), ("try", restored)] {
                let expected = "one\ntwo\nthree\n";
                assert_eq!(cli.ok(format!("read {plan} app a.txt")), expected);
                let link = format!("-q run --plan {plan} -- readlink link");
                assert_eq!(cli.ok(&link), "a.txt\n", "{how}");
                assert_eq!(cli.ok(format!("diff {plan} --name-status")), "", "{how}");
                // What no process can prove is said, and nothing else: a link shows where it points.
                let said = said.stderr_text();
                let told: Vec<_> = said
                    .lines()
                    .filter(|line| line.contains("touched"))
                    .collect();
                assert_eq!(told.len(), 1, "{how}: {said}");
                assert!(told[0].ends_with("are unchanged: 'a.txt'"), "{how}: {said}");
            }
        }
    }
}

// rule F6, R1, C15
#[test]
fn a_change_of_the_original_is_told_in_terms_of_the_restore() {
    as_user_too();
    for change in [
        "echo other > a.txt",
        "chmod 600 a.txt",
        "setfattr -n user.seen -v 1 a.txt",
        "printf 'ONE\\ntwo\\nthree\\n' > a.txt",
        "cp -p a.txt ../b; mv ../b a.txt",
        "rm a.txt",
    ] {
        let (world, cli) = planned("filesystem_copy");
        create(&cli, "here");
        put(&cli, "try app a.txt", "x\n");
        shell(&world.at("app"), change);
        for line in ["restore try here", "plan fork try then --at here"] {
            let said = cli.fails(line, 4);
            let holds = said.contains("'a.txt' cannot be restored");
            assert!(holds, "{change}: {said}");
            assert!(said.contains("checkpoint list"), "{change}: {said}");
            assert!(!said.contains("commit"), "{change}: {said}");
            assert_eq!(cli.ok("read try app a.txt"), "x\n", "{change}");
        }
    }
}

/// Who writes into a file and sets its time back leaves nothing by which a checkpoint could tell; that is said. Whatever
/// would be released over it is a conflict as ever.
// rule F6, C15
#[test]
fn a_time_that_was_set_back_is_not_passed_over_in_silence() {
    let (world, cli) = planned("filesystem_copy");
    let app = world.at("app");
    create(&cli, "here");
    put(&cli, "try app a.txt", "x\n");
    let forge =
        "touch -r a.txt ../time; printf 'ONE\\ntwo\\nthree\\n' > a.txt; touch -r ../time a.txt";
    shell(&app, forge);
    cli.fails("commit try", 4);
    let restored = cli.run("restore try here");
    let said = restored.stderr_text();
    assert_eq!(restored.status, 0, "{said}");
    has(&said, ["which was touched since", "'a.txt'"]);
    assert_eq!(cli.ok("diff try --name-status"), "");
    put(&cli, "try app a.txt", "y\n");
    cli.fails("commit try", 4);
}
