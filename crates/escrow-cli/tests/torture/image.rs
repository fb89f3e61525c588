//! The strategy of the examples for images of podman: the whole suite, which kills its program in the middle of each method.

use crate::*;

#[derive(Clone)]
struct Suite;

impl Trial for Suite {
    fn plan(&self) -> String {
        "an image of podman".to_owned()
    }

    fn run(&self) -> Verdict {
        let world = World::new();
        let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/strategies");
        let example = examples.join("container/podman_image.py");
        fs::copy(example, world.at("podman_image.py")).expect("there is room");
        let config = format!(
            "sandbox: {{custom_strategies: {{image: {{module: podman_image, class: PodmanImage, options: \
             {{podman: [podman, --storage-driver, vfs, --root, '{}', --runroot, '{}']}}}}}}}}\n",
            world.at("images").display(),
            world.at("r").display()
        );
        write(world.at("escrow.yaml"), config);
        let cli = Cli::new(&world, &binary());
        cli.trust();
        let report = json(&cli, "strategy check image");
        let checks = report["checks"].as_array().map_or(0, Vec::len);
        let conforms = report["conforms"] == true && checks > 35;
        Verdict {
            hit: Some(Step::named("suite")),
            wrong: (!conforms)
                .then(|| report.to_string())
                .into_iter()
                .collect(),
        }
    }
}

/// Once: it takes minutes.
pub(crate) fn suite(form: Form) -> Figures {
    form.run(vec![Suite], 1)
}
