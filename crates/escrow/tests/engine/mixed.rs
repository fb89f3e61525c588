//! A plan with members of different kinds: a directory, and a document that no tree code knows (`toy`). They are committed,
//! undone and restored as one, whatever fails and wherever the process is killed.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use escrow::event::Unobserved;
use escrow::internals::store::Plan;
use escrow::manager::{Manager, ManagerOptions, NewResource};
use escrow::model::resource::OPAQUE;
use escrow::model::{
    ResourceId, ResourcePath, ResourceType, SystemIdSource, Target, TargetLocation,
};
use escrow::strategy::conformance::{Case, Fixture, run};
use escrow::strategy::registry::Registration;
use escrow::strategy::{Access, Registry};
use escrow_testkit::World;
use escrow_testkit::stepper::Fault;

use crate::mixed_sweep::{self, TwoMembers};
use crate::support::{at, options};
use crate::toy::{Map, Toy, load, save};

/// What the suite is answered.
type Plain<T> = std::result::Result<T, String>;

/// How the documents of the conformance suite are made.
struct Documents(PathBuf);

struct Document(PathBuf);

impl Fixture for Documents {
    fn fresh(&self) -> Plain<Box<dyn Case>> {
        let at = self.0.join(ResourceId::new(&SystemIdSource).to_string());
        let map: Map = [("known", "its own"), ("other", "another")]
            .map(|(key, value)| (key.to_owned(), value.as_bytes().to_vec()))
            .into();
        save(&at, &(Map::new(), map)).map_err(|error| error.to_string())?;
        Ok(Box::new(Document(at)))
    }
}

impl Document {
    fn map(&self) -> Plain<Map> {
        Ok(load(&self.0).map_err(|error| error.to_string())?.1)
    }
}

impl Case for Document {
    fn target(&self) -> Target {
        Target {
            location: TargetLocation::Opaque(self.0.display().to_string()),
            ..Target::at(ResourceId::new(&SystemIdSource), "document", &self.0)
        }
    }

    fn known(&self) -> (ResourcePath, Vec<u8>) {
        (at("known"), b"its own".to_vec())
    }

    fn absent(&self) -> Option<ResourcePath> {
        Some(at("absent"))
    }

    fn fingerprint(&self) -> Plain<String> {
        Ok(format!("{:?}", self.map()?))
    }

    fn state(&self) -> Plain<BTreeMap<ResourcePath, String>> {
        let text = |(key, value): (String, Vec<u8>)| (at(key), format!("{value:?}"));
        Ok(self.map()?.into_iter().map(text).collect())
    }

    fn contents(&self) -> Plain<Vec<(ResourcePath, Vec<u8>)>> {
        let item = |(key, value): (String, Vec<u8>)| (at(key), value);
        Ok(self.map()?.into_iter().map(item).collect())
    }

    fn replace_original(&self) -> Plain<bool> {
        Ok(false)
    }

    fn change_original(&self, path: &ResourcePath, content: &[u8]) -> Plain<()> {
        let mut map = self.map()?;
        map.insert(path.to_string(), content.to_vec());
        save(&self.0, &(Map::new(), map)).map_err(|error| error.to_string())
    }

    fn work_through(&self, _access: &Access, _path: &ResourcePath, _content: &[u8]) -> Plain<()> {
        Err("it gives nothing to work through".to_owned())
    }
}

// rule P1
#[test]
fn a_strategy_without_directories_keeps_the_contract() {
    let world = World::new();
    let report = run(&Toy, &Documents(world.path().to_owned()));
    assert_eq!(report.problems(), Vec::<String>::new());
}

/// A manager that knows documents.
fn manager(home: &Path) -> Manager {
    let mut registry = Registry::builtin();
    let registered = registry.register(Registration::new(Arc::new(Toy)));
    registered.expect("no other strategy has the name");
    let mut options = ManagerOptions {
        registry,
        ..options(home)
    };
    let kind = ResourceType::own("document", OPAQUE, &["toy"]);
    options.settings.types.put(kind);
    Manager::open(options).expect("it opens on a fresh or used home")
}

/// A plan with a directory and a document, both edited.
struct Mixed {
    directory: PathBuf,
    document: PathBuf,
    manager: Manager,
    plan: Plan,
}

fn open(place: &Path) -> (PathBuf, PathBuf, Manager) {
    let home = place.join("home");
    (place.join("app"), place.join("document"), manager(&home))
}

impl TwoMembers for Mixed {
    fn new(place: &Path) -> Self {
        let (directory, document, manager) = open(place);
        std::fs::create_dir_all(&directory).expect("there is room");
        std::fs::write(directory.join("file"), "old").expect("there is room");
        let map: Map = [("key".to_owned(), b"old".to_vec())].into();
        save(&document, &(Map::new(), map)).expect("there is room");
        for (name, kind, at) in [
            ("app", "fs-directory", &directory),
            ("document", "document", &document),
        ] {
            let new = NewResource {
                kind: Some(kind),
                ..crate::support::directory(name, at)
            };
            manager.add_resource(&new).expect("it can be a resource");
        }
        let typed = ["app", "document"].map(OsString::from);
        let view = manager.create_plan(Some("mixed"), place, &typed, None, &Unobserved);
        let plan = view.expect("both can be sandboxed").plan;
        let mixed = Self {
            directory,
            document,
            manager,
            plan,
        };
        mixed.write("new");
        mixed
    }

    fn again(place: &Path) -> Self {
        let (directory, document, manager) = open(place);
        let plan = manager
            .resolve_plan(Some("mixed"), Path::new("/"))
            .expect("it is known");
        Self {
            directory,
            document,
            manager,
            plan,
        }
    }

    fn originals(&self) -> [String; 2] {
        let file = std::fs::read_to_string(self.directory.join("file"));
        let value = load(&self.document).expect("it is there").1["key"].clone();
        let value = String::from_utf8(value).expect("it is text");
        [file.expect("it is there"), value]
    }

    fn parts(&self) -> (&Manager, &Plan) {
        (&self.manager, &self.plan)
    }
}

impl Mixed {
    fn write(&self, text: &str) {
        for (name, path) in [("app", "file"), ("document", "key")] {
            let resource = self.manager.resource(name).expect("it is known");
            let written =
                (self.manager).write(&self.plan, &resource, &at(path), &mut text.as_bytes());
            written.expect("it can be written");
        }
    }

    /// What both sandboxes hold.
    fn sandboxes(&self) -> Vec<String> {
        let read = |(name, path): (&str, &str)| {
            let resource = self.manager.resource(name).expect("it is known");
            let file = self.manager.read(&self.plan, &resource, &at(path));
            let mut text = String::new();
            let read = file.expect("it is there").read_to_string(&mut text);
            read.map(|_| text).expect("it is text")
        };
        [("app", "file"), ("document", "key")].map(read).to_vec()
    }
}

// rule C1, R4
#[test]
fn a_directory_and_a_document_are_one_plan() {
    let world = World::new();
    let mixed = Mixed::new(world.path());
    let manager = &mixed.manager;
    let diff = manager
        .diff(&mixed.plan, None)
        .expect("both can be compared");
    let changes = diff.resources.iter().map(|one| one.diff.changes.len());
    assert_eq!(changes.sum::<usize>(), 2);
    drop(diff);
    let first = manager.create_checkpoint(&mixed.plan, Some("first"), &Unobserved);
    let first = first.expect("both can be kept");
    mixed.write("later");
    assert_eq!(mixed.sandboxes(), ["later", "later"]);
    let restored = manager.restore(&mixed.plan, &first, &Unobserved);
    restored.expect("both can return");
    assert_eq!(mixed.sandboxes(), ["new", "new"]);
    assert_eq!(mixed.originals(), ["old", "old"]);
    mixed.commit().expect("nothing is in the way");
    assert_eq!(mixed.originals(), ["new", "new"]);
    manager
        .undo(&mixed.plan, &Unobserved)
        .expect("both can be undone");
    assert_eq!(mixed.originals(), ["old", "old"]);
}

// rule C15
#[test]
fn a_conflict_in_a_document_stops_the_directory_too() {
    let world = World::new();
    let mixed = Mixed::new(world.path());
    let map: Map = [("key".to_owned(), b"theirs".to_vec())].into();
    save(&mixed.document, &(Map::new(), map)).expect("there is room");
    mixed.commit().expect_err("the document moved on");
    assert_eq!(mixed.originals(), ["old", "theirs"]);
    assert_eq!(mixed.sandboxes(), ["new", "new"]);
}

/// Not a test of its own: what the sweeps below let go wrong.
#[test]
fn stepped() {
    mixed_sweep::stepped::<Mixed>();
}

fn sweep(verb: &str, fault: Fault, stride: u64) {
    mixed_sweep::sweep::<Mixed>("mixed::stepped", verb, fault, stride);
}

// rule C1, C3, C4
#[test]
fn a_mixed_commit_is_never_mixed() {
    for fault in [Fault::Kill, Fault::Once(28), Fault::Forever(5)] {
        sweep("commit", fault, 23);
    }
}

// rule C3, C4
#[test]
fn a_mixed_undo_is_never_mixed() {
    for fault in [Fault::Kill, Fault::Once(28), Fault::Forever(5)] {
        sweep("undo", fault, 23);
    }
}
