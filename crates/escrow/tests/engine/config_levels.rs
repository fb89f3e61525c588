//! Several configurations at once, as a program that uses the engine meets them: the system's, the
//! user's, and the project's, which only tightens unless it is trusted.

use std::path::PathBuf;

use escrow::config::{ConfigSources, Settings, Validation};
use escrow::manager::{Manager, ManagerOptions};
use escrow::model::Network;
use escrow_testkit::World;
use escrow_testkit::user::rerun_test_as_user;
use serde_json::Value;

use crate::support::{options, rows};

struct Scene {
    world: World,
    project: PathBuf,
}

impl Scene {
    fn new(user: &str, project: &str) -> Self {
        let world = World::new();
        let scene = Self {
            project: world.dir("project"),
            world,
        };
        scene.write("user", user);
        scene.write("project", project);
        scene
    }

    fn write(&self, directory: &str, text: &str) {
        let file = self.world.dir(directory).join("escrow.yaml");
        std::fs::write(file, text).expect("there is room");
    }

    fn sources(&self) -> ConfigSources {
        ConfigSources {
            system: Some(self.world.dir("system").join("escrow.yaml")),
            user: Some(self.world.dir("user").join("escrow.yaml")),
            directory: Some(self.project.clone()),
            ..ConfigSources::default()
        }
    }

    fn open_with(&self, sources: ConfigSources) -> Manager {
        let options = ManagerOptions {
            sources,
            ..options(&self.world.home())
        };
        Manager::open(options).expect("a manager opens on a fresh or used home")
    }

    fn open(&self) -> Manager {
        self.open_with(self.sources())
    }

    fn trust(&self) {
        let manager = self.open();
        let examined = manager.examine_config(None).expect("there is one");
        manager.trust_config(&examined).expect("it is permitted");
    }
}

/// Every key, what the user says, what the project says, and what counts without and with trust.
const KEYS: &str = "
network | run: {network: none} | run: {network: host} | none | host
network | {} | run: {network: host} | own | host
network | {} | run: {network: own} | own | own
network | {} | run: {network: none} | none | none
network | run: {network: own} | run: {network: {own: ['localhost:1']}} | own | own,allow:localhost:1
network | run: {network: host} | run: {network: none} | none | none
network | run: {network: host} | run: {network: {allow: [a.b]}} | allow:a.b | allow:a.b
network | run: {network: {allow: ['*.b']}} | run: {network: {allow: [a.b, 'x.b:443']}} | allow:a.b,x.b:443 | allow:a.b,x.b:443
network | run: {network: {allow: ['*.b']}} | run: {network: {allow: [a.b, c.d]}} | allow:*.b | allow:a.b,c.d
network | run: {network: {allow: [a.b]}} | run: {network: host} | allow:a.b | host
scratch | {} | run: {scratch: false} | false | false
scratch | run: {scratch: false} | run: {scratch: true} | false | true
writable | {} | run: {writable: [/srv]} | - | /srv
writable | run: {writable: [/var]} | run: {writable: [/srv]} | /var | /srv
env | run: {env: {A: b}} | run: {env: {A: c, D: e}} | A=b | A=c D=e
limits | {} | run: {limits: {memory: 1G, cpu: '0.5'}} | 1073741824 - 500 - | 1073741824 - 500 -
limits | run: {limits: {pids: 10, timeout: 1m}} | run: {limits: {pids: 20}} | - 10 - 60 | - 20 - 60
limits | run: {limits: {pids: 10}} | run: {limits: {pids: 5, timeout: 2s}} | - 5 - 2 | - 5 - 2
hide | run: {hide: [/a]} | run: {hide: [/b]} | /a /b | /a /b
show | {} | run: {show: [~/.ssh]} | - | ~/.ssh
show | run: {show: [/a, /b]} | run: {show: [/b]} | /b | /b
keep | {} | run: {keep: [~/.ssh]} | - | ~/.ssh
keep | run: {keep: [/a, /b]} | run: {keep: [/b]} | /b | /b
pass | {} | run: {env: {pass: [A_TOKEN]}} | - | A_TOKEN
pass | run: {env: {pass: [A, B]}} | run: {env: {pass: [B]}} | B | B
validate | {} | validate: [[make]] | - | make
userns | {} | run: {allow_userns: true} | false | true
userns | run: {allow_userns: true} | run: {allow_userns: false} | false | false
validate | validate: [[lint]] | validate: [{command: [lint], network: host}] | lint | lint lint with network
validate | validate: [[lint]] | validate: [[make]] | lint | lint make
strategy | {} | sandbox: {strategy: none} | auto | none
strategy | {} | sandbox: {strategy: 'm:C'} | auto | m:C
strategy | {} | sandbox: {strategy: filesystem_copy} | filesystem_copy | filesystem_copy
strategy | sandbox: {strategy: overlay} | sandbox: {strategy: auto} | overlay | overlay
undo | {} | sandbox: {undo: {keep: 1s}} | 604800 | 1
undo | {} | sandbox: {undo: {keep: 2w}} | 1209600 | 1209600
cleanup | sandbox: {cleanup: manual} | {} | manual | manual
cleanup | {} | sandbox: {cleanup: manual} | manual | manual
cleanup | {} | sandbox: {cleanup: on_terminal} | on_commit | on_terminal
cleanup | sandbox: {cleanup: on_terminal} | sandbox: {cleanup: on_commit} | on_commit | on_commit
kept | {} | sandbox: {checkpoint: {keep: 3}} | 20 | 3
kept | {} | sandbox: {checkpoint: {keep: 30}} | 30 | 30
auto | {} | sandbox: {checkpoint: {auto: [on_error]}} | before_run before_restore on_error | on_error
auto | sandbox: {checkpoint: {auto: [on_error]}} | sandbox: {checkpoint: {auto: [before_commit, on_error]}} | before_commit on_error | before_commit on_error
programs | {} | sandbox: {custom_strategies: {mine: {command: [x]}}} | - | mine
kind | {} | resource_types: [{name: t, sandbox_strategy: none}] | auto | none
kind | resource_types: [{name: t, sandbox_strategy: overlay}] | resource_types: [{name: t, sandbox_strategy: filesystem_copy}] | overlay | filesystem_copy
";

/// What the settings say about a key.
fn look(settings: &Settings, key: &str) -> String {
    let join = |words: &mut dyn Iterator<Item = String>| words.collect::<Vec<_>>().join(" ");
    let text = match key {
        "network" => {
            let network = settings.run.network.clone();
            network.unwrap_or_else(Network::own).to_string()
        }
        "scratch" => settings.run.scratch.unwrap_or(true).to_string(),
        "writable" => join(
            &mut settings
                .run
                .writable
                .iter()
                .map(|at| at.display().to_string()),
        ),
        "env" => join(
            &mut settings
                .run
                .env
                .iter()
                .map(|(name, value)| format!("{name}={value}")),
        ),
        "limits" => {
            let limits = &settings.run.limits;
            let seconds = limits.timeout.map(|time| time.as_secs());
            let all = [limits.memory, limits.pids, limits.cpu, seconds];
            let text = |one: Option<u64>| one.map_or("-".to_owned(), |one| one.to_string());
            join(&mut all.into_iter().map(text))
        }
        "hide" | "show" | "keep" => {
            let paths = match key {
                "hide" => &settings.run.hide,
                "show" => &settings.run.show,
                _ => &settings.run.keep,
            };
            join(&mut paths.iter().map(|at| at.display().to_string()))
        }
        "pass" => join(&mut settings.run.pass.iter().flatten().cloned()),
        "userns" => settings.run.userns.unwrap_or(false).to_string(),
        "validate" => {
            let text = |one: &Validation| match one.network == Network::Host {
                true => format!("{} with network", one.words.join(" ")),
                false => one.words.join(" "),
            };
            join(&mut settings.validate.iter().map(text))
        }
        "strategy" => settings.strategy.clone().unwrap_or("auto".to_owned()),
        "undo" => settings.undo_keep.as_secs().to_string(),
        "cleanup" => settings.cleanup.to_string(),
        "auto" => join(
            &mut settings
                .checkpoint
                .auto
                .iter()
                .map(|one| one.as_str().to_owned()),
        ),
        "kept" => settings.checkpoint.keep.to_string(),
        "programs" => join(&mut settings.custom_strategies.keys().cloned()),
        "kind" => settings
            .types
            .named("t")
            .expect("it is defined")
            .default
            .clone(),
        other => panic!("no key {other}"),
    };
    if text.is_empty() {
        "-".to_owned()
    } else {
        text
    }
}

/// The table of `docs/configuration.md`.
// rule S6
#[test]
fn every_key_of_a_found_file_only_tightens() {
    rerun_test_as_user("config_levels::every_key_of_a_found_file_only_tightens");
    for [key, user, project, untrusted, trusted] in rows(KEYS) {
        let (scene, row) = (Scene::new(&user, &project), format!("{user} / {project}"));
        assert_eq!(look(scene.open().settings(), &key), untrusted, "{row}");
        let examined = scene.open().examine_config(None).expect("there is one");
        let loosens = untrusted != trusted;
        assert_eq!(!examined.loosens.is_empty(), loosens, "{row}: {examined:?}");
        scene.trust();
        assert_eq!(look(scene.open().settings(), &key), trusted, "{row}");
        // Named by the user it counts, too.
        let scene = Scene::new(&user, &project);
        let named = scene.open_with(ConfigSources {
            named: Some(PathBuf::from("escrow.yaml")),
            ..scene.sources()
        });
        assert_eq!(look(named.settings(), &key), trusted, "{row}");
    }
}

/// A key that is new has no way past the table of what a found file may say.
// rule S6
#[test]
fn every_key_of_the_schema_is_in_the_table() {
    let schema = escrow::config::schema(&escrow::strategy::Registry::builtin());
    let table = escrow::config::table();
    let rows: Vec<&str> = table.split('`').skip(1).step_by(2).collect();
    let mut missing = Vec::new();
    note_keys(&schema, &schema, "", &mut |key| {
        let covers = |row: &&str| key == *row || key.starts_with(&format!("{row}."));
        if !rows.iter().any(covers) {
            missing.push(key.to_owned());
        }
    });
    assert_eq!(missing, [""; 0], "{table}");
}

/// Calls `note` for every key that has no keys below it.
fn note_keys(schema: &Value, at: &Value, path: &str, note: &mut dyn FnMut(&str)) {
    let one = at["anyOf"].as_array().and_then(|any| any.first());
    let at = one.unwrap_or(at);
    let reference = at["$ref"].as_str().and_then(|way| way.strip_prefix('#'));
    let at = reference.map_or(at, |way| schema.pointer(way).expect("it leads somewhere"));
    let any = &at["additionalProperties"];
    if any.is_object() {
        return note_keys(schema, any, &format!("{path}.NAME"), note);
    }
    let Some(keys) = at["properties"].as_object() else {
        return note(path);
    };
    for (key, below) in keys {
        let path = match path {
            "" => key.clone(),
            path => format!("{path}.{key}"),
        };
        note_keys(schema, below, &path, note);
    }
}

/// What the caller denies no file permits.
// rule S6
#[test]
fn a_policy_of_the_caller_is_not_relaxed_by_a_file() {
    let scene = Scene::new("{}", "policy: {mode: local}\n");
    scene.trust();
    let options = ManagerOptions {
        policy: escrow::policy::Policy::unreadable("a reason"),
        sources: scene.sources(),
        ..options(&scene.world.home())
    };
    let manager = Manager::open(options).expect("it opens");
    let decision = manager.check_access("me", "read", "*");
    assert!(!decision.expect("it can be asked").permitted);
}
