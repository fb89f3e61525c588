//! The configuration: what is read, what is refused and where, and that the schema says the same.

use std::path::Path;
use std::time::Duration;

use escrow::config::{AutoCheckpoint, ConfigError, Settings, begin, schema, write_new};
use escrow::error::{Error, Kind};
use escrow::event::Unobserved;
use escrow::manager::{Manager, ManagerOptions};
use escrow::model::ResourceTypes;
use escrow::model::{CleanupPolicy, Network};
use escrow::strategy::Registry;
use escrow_testkit::World;

use crate::support::options;

const FILE: &str = "/project/escrow.yaml";

fn read(text: &str) -> Result<Settings, ConfigError> {
    Settings::parse(text.as_bytes(), Path::new(FILE), &Registry::builtin())
}

/// Everything that can be said.
const FULL: &str = r#"
sandbox:
  strategy: filesystem_copy
  cleanup: on_terminal
  undo: { keep: 36h }
  checkpoint: { auto: [before_commit], keep: 3 }
  custom_strategies:
    s3_versioned: { module: my_strategies.s3, class: S3VersionedStrategy }
    zfs: { command: [/usr/local/bin/escrow-zfs, --pool, tank] }
resource_types:
  - { name: small-tree, extends: tree, strategies: [filesystem_copy] }
  - { name: tree, description: a tree of ours, sandbox_strategy: filesystem_copy }
  - { name: model-registry, extends: fs-directory, sandbox_strategy: s3_versioned }
resources:
  app: { type: git-checkout, at: . }
  db: { type: sqlite, at: data/app.db, parent: app }
  docs: { type: tree, at: docs, parent: app, strategy: inherit }
  far: { at: /srv/far, strategy: my.module:Class }
policy:
  mode: enforce
  rules:
    - { deny: [commit], principal: "agent*", scope: "*" }
run:
  writable: [cache, /var/tmp]
  network: none
  scratch: false
  env: { CI: "true", LEVEL: 3 }
validate:
  - make test
  - [cargo, test]
"#;

#[test]
fn everything_that_is_said_arrives() {
    let settings = read(FULL).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(settings.strategy.as_deref(), Some("filesystem_copy"));
    assert_eq!(settings.cleanup, CleanupPolicy::OnTerminal);
    assert_eq!(settings.undo_keep, Duration::from_secs(36 * 3600));
    assert_eq!(settings.checkpoint.auto, [AutoCheckpoint::BeforeCommit]);
    assert_eq!(settings.checkpoint.keep, 3);
    let custom: Vec<&String> = settings.custom_strategies.keys().collect();
    assert_eq!(custom, ["s3_versioned", "zfs"]);
    let kind = |name| settings.types.named(name).expect("it is defined");
    assert_eq!(kind("small-tree").default, "filesystem_copy");
    assert_eq!(kind("small-tree").allowed, ["filesystem_copy"]);
    assert_eq!(kind("small-tree").extends.as_deref(), Some("tree"));
    assert!(
        kind("model-registry")
            .allowed
            .contains(&"s3_versioned".to_owned())
    );
    let db = settings.resource("db").expect("it is declared");
    assert_eq!(db.at, Path::new("/project/data/app.db"));
    // As it is shown: a path is equal to the same with a dot.
    let app = settings.resource("app").expect("it is declared");
    assert_eq!(app.at.as_os_str(), "/project");
    assert_eq!(db.parent.as_deref(), Some("app"));
    let far = settings.resource("far").expect("it is declared");
    assert_eq!(
        (far.at.as_path(), far.kind.as_deref()),
        (Path::new("/srv/far"), None)
    );
    let writable = [Path::new("/project/cache"), Path::new("/var/tmp")];
    assert_eq!(settings.run.writable, writable);
    assert_eq!(settings.run.network, Some(Network::None));
    assert_eq!(settings.run.scratch, Some(false));
    assert_eq!(settings.run.env["LEVEL"], "3");
    assert_eq!(settings.validate[0].words, ["sh", "-c", "make test"]);
    assert_eq!(settings.validate[1].words, ["cargo", "test"]);
}

#[test]
fn what_is_left_out_has_its_default() {
    let defaults = Settings {
        file: Some(Path::new(FILE).into()),
        ..Settings::default()
    };
    for text in [
        "",
        "# nothing\n",
        "---\n",
        "sandbox:\n",
        "sandbox: {}\n",
        "sandbox: {undo: , checkpoint: }\n",
        "resources:\nrun:\nvalidate: []\nresource_types: []\n",
        "resources:\nvalidate:\nresource_types:\npolicy:\nrun: {writable: , env: }\n",
        "sandbox: {cleanup: on_commit, undo: {keep: 7d}, checkpoint: {keep: 20}}\n",
        "\u{feff}sandbox: {}\n",
    ] {
        assert_eq!(read(text), Ok(defaults.clone()), "{text:?}");
    }
}

/// The documents that are refused, and how; the file says what it looks like.
const BAD: &str = include_str!("config_bad.txt");

#[test]
fn every_mistake_is_told_with_its_place() {
    let (mut wrong, mut cases) = (Vec::new(), 0);
    for case in BAD.split("=== ").skip(1) {
        let (head, text) = case.split_once('\n').expect("a case has a head");
        let parts: Vec<&str> = head.split(" | ").collect();
        let [place, what, near] = parts.as_slice() else {
            panic!("{head}: three parts are expected");
        };
        let (place, key) = place.split_once(' ').expect("a place and a key");
        let some = |word: &str| Some(word.to_owned()).filter(|word| word != "-");
        cases += 1;
        let Err(error) = read(text) else {
            wrong.push(format!("{head}: it was taken"));
            continue;
        };
        let right = format!("{}:{}", error.line, error.column) == place
            && error.key == some(key).unwrap_or_default()
            && error.what.contains(what)
            && error.near == some(near)
            && error.to_string().starts_with(&format!("{FILE}:{place}: "));
        if !right {
            wrong.push(format!("{head}: {error} (near {:?})", error.near));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(cases > 50, "only {cases} cases were found");
}

#[test]
fn bytes_that_are_no_text_are_told_with_their_place() {
    let text = b"sandbox: {}\nrun: {env: {A: '\xff'}}\n";
    let error = Settings::parse(text, Path::new(FILE), &Registry::builtin());
    let error = error.expect_err("it is not UTF-8");
    assert_eq!((error.line, error.column), (2, 17), "{error}");
    assert!(error.what.contains("UTF-8"), "{error}");
}

#[test]
fn documents_that_want_too_much_are_refused() {
    let mut laughing = "policy:\n  a0: &a0 [x, x, x, x, x, x, x, x, x]\n".to_owned();
    for level in 1..12 {
        let below = [format!("*a{}", level - 1).as_str()].repeat(9).join(", ");
        laughing.push_str(&format!("  a{level}: &a{level} [{below}]\n"));
    }
    let open = |times: usize| format!("policy: {}", "[".repeat(times));
    let closed = format!("{}{}", open(1000), "]".repeat(1000));
    let deep = format!("policy: {}1{}", "{a: ".repeat(1000), "}".repeat(1000));
    let itself = "policy: &a\n  b: *a\n".to_owned();
    for text in [laughing, open(400_000), closed, deep, itself] {
        let error = read(&text).expect_err("it is refused");
        assert!(error.line > 0, "{error}");
        assert!(!error.what.contains("{ "), "{error}");
    }
}

/// Names of a text that would do something to a terminal are shown escaped.
#[test]
fn what_is_told_cannot_fool_a_terminal() {
    let error = read("\"\\e[2J\": 1\n").expect_err("there is no such key");
    let told = format!("{error}");
    assert!(!told.contains('\u{1b}'), "{told:?}");
}

/// The enum at a place of the schema.
fn names_at(schema: &serde_json::Value, pointer: &str) -> Vec<String> {
    let found = schema.pointer(pointer);
    let names = found.and_then(serde_json::Value::as_array);
    let names = names.unwrap_or_else(|| panic!("{pointer}: {schema:#}"));
    let text = |name: &serde_json::Value| name.as_str().map(str::to_owned);
    names.iter().filter_map(text).collect()
}

// rule P7, P8
#[test]
fn the_schema_takes_exactly_the_names_that_the_registry_knows() {
    let registry = Registry::builtin();
    let schema = schema(&registry);
    let registered: Vec<String> = registry.names();
    let of = |first: &[&str]| {
        let first = first.iter().map(|&name| name.to_owned());
        first.chain(registered.clone()).collect::<Vec<_>>()
    };
    let then = "/allOf/0/then/properties";
    let kind = format!("{then}/resource_types/items/properties");
    let resources = "properties/resources/additionalProperties/properties";
    for (pointer, expected) in [
        (
            format!("{then}/sandbox/properties/strategy/anyOf/0/enum"),
            of(&["auto"]),
        ),
        (
            format!("{kind}/sandbox_strategy/anyOf/0/enum"),
            of(&["auto"]),
        ),
        (format!("{kind}/strategies/items/anyOf/0/enum"), of(&[])),
        (
            format!("/allOf/0/then/{resources}/strategy/anyOf/0/enum"),
            of(&["auto", "inherit"]),
        ),
        (
            format!("/allOf/1/then/{resources}/type/enum"),
            ResourceTypes::default().names(),
        ),
    ] {
        assert_eq!(names_at(&schema, &pointer), expected, "{pointer}");
    }
    // What a type that can be used takes is known, and everything known is taken by one.
    let types = ResourceTypes::default();
    for kind in types.all().iter().filter(|kind| kind.supported) {
        for name in kind.allowed.iter().chain(&kind.auto) {
            assert!(registered.contains(name), "{}: {name}", kind.name);
        }
        assert!(registry.check(&kind.default, kind).is_ok(), "{}", kind.name);
    }
    for name in &registered {
        let takes = |kind: &escrow::model::ResourceType| kind.allowed.contains(name);
        assert!(types.all().iter().any(takes), "no type takes {name}");
    }
    // And the reader takes the same as the schema.
    let validator = jsonschema::validator_for(&schema).expect("it is a schema");
    let others = "auto inherit snapshot git_worktree quantum Overlay m:C";
    let tried = registered
        .iter()
        .map(String::as_str)
        .chain(others.split(' '));
    for name in tried {
        // The schema does not say which type takes which strategy.
        let takes = |kind: &&escrow::model::ResourceType| {
            kind.supported && kind.allowed.iter().any(|one| one == name)
        };
        let kind = types.all().iter().rev().find(takes);
        let kind = kind.map_or("git-checkout", |kind| &kind.name);
        for text in [
            format!("sandbox: {{strategy: '{name}'}}"),
            format!("resource_types: [{{name: t, extends: {kind}, sandbox_strategy: '{name}'}}]"),
            format!("resource_types: [{{name: t, extends: {kind}, strategies: ['{name}']}}]"),
        ] {
            // A list names what it allows; `auto` among it would say nothing.
            if name == "auto" && text.contains("strategies:") {
                continue;
            }
            let valid = validator.is_valid(&as_json(&text));
            assert_eq!(valid, read(&text).is_ok(), "{text}");
        }
    }
}

/// YAML as JSON, for the validator.
fn as_json(text: &str) -> serde_json::Value {
    serde_saphyr::from_str(text).unwrap_or_else(|error| panic!("{text}: {error}"))
}

// rule P8
#[test]
fn the_schema_agrees_with_the_reader_on_documents() {
    let schema = schema(&Registry::builtin());
    let validator = jsonschema::validator_for(&schema).expect("it is a schema");
    let told = |text: &str| {
        let document = as_json(text);
        let errors = validator.iter_errors(&document);
        errors.map(|error| error.to_string()).collect::<Vec<_>>()
    };
    // A number where a text is meant is taken for a text by the reader only.
    let full = FULL.replace("LEVEL: 3", "LEVEL: \"3\"");
    for text in [
        full.as_str(),
        "{}",
        "sandbox: {undo: {keep: 12h}}",
        "validate: [a, [b, c]]",
        "sandbox:\nresources:\nvalidate:\nresource_types:\nrun: {writable: , env: }",
    ] {
        assert_eq!(told(text), [""; 0], "{text}");
    }
    for text in [
        "sandbx: {}",
        "sandbox: {strateg: auto}",
        "sandbox: {cleanup: never}",
        "sandbox: {undo: {keep: 7}}",
        "sandbox: {undo: {keep: 7y}}",
        "sandbox: {checkpoint: {auto: [sometimes]}}",
        "resource_types: [{extends: fs-directory}]",
        "resources: {app: {type: fs-directory}}",
        "resources: {app: {at: ., type: sqlit}}",
        "resources: {app: {at: ., strategy: overly}}",
        "run: {network: some}",
        "validate: [5]",
    ] {
        assert_ne!(told(text), [""; 0], "{text}");
        assert!(read(text).is_err(), "{text}");
    }
}

// rule P8
#[test]
fn every_configuration_in_the_documents_is_valid() {
    let schema = schema(&Registry::builtin());
    let validator = jsonschema::validator_for(&schema).expect("it is a schema");
    let top = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut found = 0;
    let guides = std::fs::read_dir(top.join("docs/guides")).expect("there are guides");
    let guides = guides.map(|entry| entry.expect("it can be listed").path());
    let pages = ["README.md", "docs/configuration.md"].map(|page| top.join(page));
    for page in pages.into_iter().chain(guides) {
        let text = std::fs::read_to_string(&page).expect("the page is there");
        let page = page.display();
        for block in text.split("```yaml\n").skip(1) {
            let block = block.split("```").next().unwrap_or_default();
            assert!(validator.is_valid(&as_json(block)), "{page}: {block}");
            assert!(read(block).is_ok(), "{page}: {block}");
            found += 1;
        }
    }
    assert!(found > 0, "no configuration was found");
}

#[test]
fn a_first_configuration_is_valid_wherever_it_is_written() {
    for world in [World::new(), World::odd()] {
        for name in ["app", "5", "true", "Null", "- dash", "-", "ünï"] {
            let directory = world.dir(name);
            let begun = begin(&directory, None).expect("the directory can be read");
            let file = directory.join("escrow.yaml");
            assert!(write_new(&directory, &begun.text, false).expect("it can be written"));
            assert!(!write_new(&directory, "other", false).expect("it is left alone"));
            let text = std::fs::read(&file).expect("it is there");
            assert_eq!(text, begun.text.as_bytes());
            let settings = Settings::parse(&text, &file, &Registry::builtin());
            let settings = settings.unwrap_or_else(|error| panic!("{name}: {error}"));
            let declared = settings
                .resource(&begun.resources[0].name)
                .expect("it is declared");
            assert_eq!(declared.at, directory.join("."));
            assert!(write_new(&directory, "{}", true).expect("it is written over"));
            let left = std::fs::read_dir(&directory)
                .expect("it can be listed")
                .count();
            assert_eq!(left, 1, "nothing else is left behind");
        }
    }
}

fn configured(world: &World, text: &str) -> Manager {
    let file = world.path().join("escrow.yaml");
    let registry = Registry::builtin();
    let settings = Settings::parse(text.as_bytes(), &file, &registry);
    let settings = settings.unwrap_or_else(|error| panic!("{error}"));
    let options = ManagerOptions {
        settings,
        registry,
        ..options(&world.home())
    };
    Manager::open(options).expect("a manager opens on a fresh or used home")
}

fn plan(manager: &Manager, world: &World, name: &str, resource: &str) -> Result<String, Error> {
    let typed = [resource.into()];
    let view = manager.create_plan(Some(name), world.path(), &typed, None, &Unobserved)?;
    Ok(view.sandboxes[0].sandbox.requested.clone())
}

// rule P7
#[test]
fn a_strategy_is_that_of_the_resource_then_of_its_type_then_the_general_one() {
    let world = World::new();
    for name in ["a", "b", "c"] {
        world.dir(name);
    }
    let text = "resource_types: [{name: t, sandbox_strategy: filesystem_copy}]\n\
                resources:\n  a: {at: a, type: t, strategy: overlay}\n  b: {at: b, type: t}\n  c: {at: c}\n";
    let manager = configured(&world, text);
    for (resource, expected) in [("a", "overlay"), ("b", "filesystem_copy"), ("c", "auto")] {
        let requested = plan(&manager, &world, resource, resource).expect("it is made");
        assert_eq!(requested, expected, "{resource}");
    }
    // Again, and by its path: the same resource.
    let known = || manager.resources().expect("they can be listed").len();
    let before = known();
    plan(&manager, &world, "again", "./b").expect("it is made");
    assert_eq!(known(), before);
}

#[test]
fn the_configuration_counts_anew_while_nobody_uses_a_resource() {
    let world = World::new();
    world.dir("a");
    world.dir("b");
    let text = |at: &str, strategy: &str| {
        format!("resources: {{app: {{at: {at}, strategy: {strategy}}}}}\n")
    };
    let manager = configured(&world, &text("a", "overlay"));
    plan(&manager, &world, "one", "app").expect("it is made");
    // Another process uses it as it was.
    for changed in [text("a", "filesystem_copy"), text("b", "overlay")] {
        let manager = configured(&world, &changed);
        let error = plan(&manager, &world, "two", "app").expect_err("it contradicts");
        assert!(matches!(error, Error::Contradicted { .. }), "{error}");
        assert_eq!(error.kind(), Kind::Conflict);
    }
    let one = manager
        .resolve_plan(Some("one"), world.path())
        .expect("it is open");
    manager.cleanup(&one, false).expect("removed");
    let manager = configured(&world, &text("b", "filesystem_copy"));
    let requested = plan(&manager, &world, "two", "app").expect("no plan uses the other");
    assert_eq!(requested, "filesystem_copy");
}

#[test]
fn parents_and_children_of_the_configuration_belong_together() {
    let world = World::new();
    std::fs::create_dir_all(world.path().join("app/docs")).expect("it is made");
    std::fs::create_dir_all(world.path().join("app/data")).expect("it is made");
    let text = "resources:\n  app: {at: app}\n  docs: {at: app/docs, parent: app, strategy: inherit}\n  \
                data: {at: app/data, parent: app}\n  gone: {at: app/gone, parent: app}\n  \
                db: {at: app/db, parent: app, type: sqlite}\n";
    let manager = configured(&world, text);
    // A child that shares its parent's sandbox brings the parent along.
    let typed = ["docs".into(), "data".into()];
    let view = manager.create_plan(Some("one"), world.path(), &typed, None, &Unobserved);
    let view = view.unwrap_or_else(|error| panic!("{error}"));
    let names: Vec<&str> = view
        .sandboxes
        .iter()
        .map(|one| one.resource.name.as_str())
        .collect();
    assert_eq!(names, ["app", "data"]);
    // A child that the configuration forgot is no hole in its parent any more.
    let plan_one = view.plan.clone();
    manager.cleanup(&plan_one, false).expect("removed");
    let manager = configured(&world, "resources: {app: {at: app}}\n");
    plan(&manager, &world, "two", "app").expect("it is made");
    let known = manager.resources().expect("they can be listed");
    let known: Vec<&str> = known.iter().map(|one| one.name.as_str()).collect();
    assert_eq!(known, ["app"]);
}

#[test]
fn resources_that_share_a_boundary_take_the_strongest_strategy_that_one_of_them_asks_for() {
    for (own, of_the_child, taken) in [
        ("auto", "filesystem_copy", "filesystem_copy"),
        ("auto", "auto", "auto"),
        ("overlay", "filesystem_copy", "filesystem_copy"),
        ("copy_on_write", "filesystem_copy", "copy_on_write"),
        ("filesystem_copy", "none", "filesystem_copy"),
    ] {
        let world = World::new();
        std::fs::create_dir_all(world.path().join("app/docs")).expect("it is made");
        let text = format!(
            "resource_types:\n  - {{name: careful, extends: fs-directory, sandbox_strategy: {of_the_child}}}\n\
             resources:\n  app: {{at: app, strategy: {own}}}\n  \
             docs: {{type: careful, at: app/docs, parent: app, strategy: inherit}}\n"
        );
        let manager = configured(&world, &text);
        let typed = ["docs".into()];
        let view = manager.create_plan(Some("one"), world.path(), &typed, None, &Unobserved);
        let view = view.unwrap_or_else(|error| panic!("{own} {of_the_child}: {error}"));
        let requested = &view.sandboxes[0].sandbox.requested;
        assert_eq!(requested, taken, "{own} {of_the_child}");
    }
}
