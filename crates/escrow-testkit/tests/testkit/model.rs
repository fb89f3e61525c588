//! The model and the shell agree, on a plain directory and through an overlay.

use escrow_testkit::model::{Edit, ExpectedKind, Model, Node, Rng};

use crate::*;

#[test]
fn edits_and_shell_agree() {
    rerun_as_user(&[]);
    for seed in 1..=6 {
        let mut rng = Rng::new(seed);
        let mut model = Model::new();
        let world = World::new();
        let dir = world.dir("tree");
        let mut script = String::from("set -eu\n");
        let mut done = 0;
        while done < 120 {
            let edit = Edit::random(&mut rng, &model);
            let before = model.clone();
            if model.apply(&edit) {
                done += 1;
                script += &edit.to_shell();
                script += "\n";
            } else {
                assert_eq!(model, before, "{edit:?} was refused and yet did something");
            }
        }
        let file = world.at("script");
        fs::write(&file, &script).expect("a script");
        sh(&dir, "exec sh -eu ../script");
        assert_eq!(Model::read_from(&dir), model, "seed {seed}:\n{script}");
        assert_eq!(
            Model::diff(&model, &Model::read_from(&dir)),
            BTreeMap::new()
        );
    }
}

#[test]
fn a_model_says_what_must_be_reported() {
    let file = |content: &str, mode| Node::File {
        content: content.into(),
        mode,
        xattr: BTreeMap::new(),
    };
    let dir = || Node::Dir { mode: 0o755 };
    let link = |target: &str| Node::Link {
        target: target.into(),
    };
    let model = |nodes: &[(&str, Node)]| Model {
        nodes: nodes
            .iter()
            .map(|(path, node)| (path.as_bytes().to_vec(), node.clone()))
            .collect(),
    };
    let old = model(&[
        ("both", file("1", 0o644)),
        ("d", dir()),
        ("d/x", file("x", 0o644)),
        ("gone", dir()),
        ("gone/y", link("z")),
        ("l", link("1")),
        ("m", file("m", 0o644)),
        ("same", file("s", 0o600)),
        ("t", file("t", 0o644)),
    ]);
    let new = model(&[
        ("both", file("2", 0o600)),
        ("d", file("now a file", 0o644)),
        ("l", link("2")),
        ("m", file("m", 0o755)),
        ("new", dir()),
        ("new/n", file("", 0o644)),
        ("same", file("s", 0o600)),
        ("t", dir()),
        ("t/in", link("t")),
    ]);
    use ExpectedKind::{Added, Deleted, ModeChanged, Modified, TypeChanged};
    let expected = [
        ("both", Modified),
        ("d", TypeChanged),
        ("d/x", Deleted),
        ("gone", Deleted),
        ("gone/y", Deleted),
        ("l", Modified),
        ("m", ModeChanged),
        ("new", Added),
        ("new/n", Added),
        ("t", TypeChanged),
        ("t/in", Added),
    ];
    let expected: BTreeMap<Vec<u8>, ExpectedKind> = expected
        .map(|(path, kind)| (path.as_bytes().to_vec(), kind))
        .into();
    assert_eq!(Model::diff(&old, &new), expected);
}

/// The same edits through a real overlay: the merged view is the model, and the lower layer is untouched.
#[test]
fn edits_through_an_overlay_agree() {
    rerun_as_user(&[]);
    for seed in 100..104 {
        let mut rng = Rng::new(seed);
        let world = World::odd();
        let [lower, upper, work] = ["lower", "upper", "work"].map(|name| world.dir(name));
        let mut model = Model::new();
        let mut script = |model: &mut Model| {
            let mut lines = String::new();
            for _ in 0..80 {
                let edit = Edit::random(&mut rng, model);
                if model.apply(&edit) {
                    lines += &edit.to_shell();
                    lines += "\n";
                }
            }
            lines
        };
        fs::write(world.at("script"), script(&mut model)).expect("a script");
        sh(&lower, "exec sh -eu ../script");
        let before = model.clone();
        for xattr in [XattrKind::User, XattrKind::Trusted] {
            if xattr == XattrKind::Trusted && !is_root() {
                continue;
            }
            model = before.clone();
            let [upper, work] = [&upper, &work].map(|dir| dir.join(format!("{xattr:?}")));
            fs::create_dir(&upper)
                .and_then(|()| fs::create_dir(&work))
                .expect("layers");
            let mount = OverlayMount {
                lower: &lower,
                upper: &upper,
                work: &work,
                xattr,
            };
            mount.run(&script(&mut model));
            let copy = world.at(format!("copy-{xattr:?}"));
            mount.snapshot_merged_to(&copy);
            assert_eq!(Model::read_from(&copy), model, "seed {seed}, {xattr:?}");
            assert_eq!(Model::read_from(&lower), before, "seed {seed}, {xattr:?}");
        }
    }
}
