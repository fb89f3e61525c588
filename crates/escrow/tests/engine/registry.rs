//! What the registry takes, and what it remembers.

use std::path::Path;
use std::sync::{Arc, Mutex};

use escrow::event::{Observer, Unobserved};
use escrow::manager::{Manager, ManagerOptions};
use escrow::model::resource::{FS_DIRECTORY, FS_FILE};
use escrow::model::{
    Conflict, Options, PlanId, ResourceId, ResourceTypes, SandboxRef, SystemIdSource,
};
use escrow::strategy::registry::{Registration, RegistryError, VERBS};
use escrow::strategy::*;
use escrow_testkit::World;
use serde_json::json;

use crate::support::options;
use crate::toy::Toy;

#[path = "../../examples/own_strategy.rs"]
mod own_strategy;

// rule P1, P7
#[test]
fn a_strategy_in_rust_of_the_examples_keeps_the_contract_and_lives_a_plan() {
    let world = World::new();
    let registry = own_strategy::registry(100);
    let strategy = registry.get("small_copy").expect("it is registered");
    let fixture = conformance::DirectoryFixture::new(world.path());
    let problems = conformance::run(&**strategy, &fixture).problems();
    assert_eq!(problems, Vec::<String>::new());
    let story = own_strategy::story(&world.dir("story"));
    story.unwrap_or_else(|error| panic!("{error}: {error:?}"));
}

// rule P7
#[test]
fn the_strategies_of_a_type_are_as_strong_as_the_documented_order_says() {
    let (registry, types) = (Registry::builtin(), ResourceTypes::default());
    let order =
        "git_worktree snapshot copy_on_write filesystem_copy overlay transaction_rollback none";
    let order: Vec<&str> = order.split(' ').collect();
    for kind in types.all().iter().filter(|kind| kind.supported) {
        let allows = |name: &&str| kind.allowed.iter().any(|one| one == name);
        let of: Vec<&str> = order.iter().copied().filter(allows).collect();
        for (at, strongest) in of.iter().enumerate() {
            for given in [
                &of[at..],
                &of[at..].iter().rev().copied().collect::<Vec<_>>(),
            ] {
                let found = registry.strongest(given.iter().copied(), kind);
                assert_eq!(found, Some(*strongest), "{}: {given:?}", kind.name);
            }
        }
    }
}

// rule P2
#[test]
fn a_strategy_that_lacks_verbs_is_refused_with_their_names() {
    let mut registry = Registry::builtin();
    let strategy = Arc::clone(registry.get("filesystem_copy").expect("it is built in"));
    let served = VERBS
        .into_iter()
        .filter(|verb| !verb.contains("checkpoint"));
    let new = Registration::new(strategy).serving(served.map(str::to_owned));
    let refused = registry.register(new).expect_err("it lacks two verbs");
    let missing = ["checkpoint", "restore_checkpoint"].map(str::to_owned);
    assert_eq!(
        refused,
        RegistryError::Incomplete {
            name: "filesystem_copy".to_owned(),
            missing: missing.to_vec(),
        }
    );
    let text = refused.to_string();
    assert!(
        text.ends_with("it lacks checkpoint, restore_checkpoint"),
        "{text}"
    );
}

// rule P7
#[test]
fn strategies_of_one_name_are_told_apart_by_the_types_they_serve() {
    let mut registry = Registry::builtin();
    let [files, rows, more] = [(); 3].map(|()| Arc::new(Toy) as Arc<dyn Strategy>);
    let new = |strategy: &Arc<dyn Strategy>| Registration::new(Arc::clone(strategy));
    let taken = Err(RegistryError::Taken {
        name: "toy".to_owned(),
    });
    assert_eq!(registry.register(new(&files).only_for(&[FS_FILE])), Ok(()));
    let sql = ["sqlite", "postgres"];
    assert_eq!(registry.register(new(&rows).only_for(&sql)), Ok(()));
    assert_eq!(registry.register(new(&more)), taken);
    assert_eq!(registry.register(new(&more).only_for(&["postgres"])), taken);
    let names = registry.names();
    assert_eq!(names.iter().filter(|name| *name == "toy").count(), 1);

    let types = ResourceTypes::default();
    let base = |name: &str| types.named(name).expect("it is built in");
    let special = |kind: &str| base(kind).special("own", None, Some("toy"), &[]);
    let serving = |kind: &str| registry.serving("toy", &special(kind)).cloned();
    let is = |kind: &str, strategy| serving(kind).is_ok_and(|one| Arc::ptr_eq(&one, strategy));
    assert!(is(FS_FILE, &files) && is("sqlite", &rows) && is("postgres", &rows));
    // A type may name it, and yet no strategy of the name serves it.
    let refused = registry.check("toy", &special(FS_DIRECTORY));
    assert!(matches!(refused, Err(RegistryError::NotAllowed { .. })));

    let ids = SystemIdSource;
    for strategy in [&files, &rows] {
        let mut made = SandboxRef {
            plan_id: PlanId::new(&ids),
            resource_id: ResourceId::new(&ids),
            strategy_name: "toy".to_owned(),
            metadata: json!({}),
        };
        registry.mark(strategy, &mut made);
        let found = registry.of(&made).expect("it is registered");
        assert!(Arc::ptr_eq(found, strategy), "{made:?}");
    }
}

/// Notes what it is given, and makes nothing.
struct Seeing(Arc<Mutex<Vec<Options>>>);

fn nothing<T>() -> Result<T> {
    Err(unsupported("seeing", "do anything", "it only looks"))
}

impl Strategy for Seeing {
    fn name(&self) -> &str {
        "seeing"
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            isolates: true,
            ..Capabilities::default()
        }
    }

    fn probe(&self, target: &Target, _: Option<&Path>) -> Probe {
        self.0
            .lock()
            .expect("one thread")
            .push(target.options.clone());
        Probe::yes("it looks")
    }

    fn create(&self, request: &CreateRequest<'_>) -> Result<Created> {
        let seen = request.target.options.clone();
        self.0.lock().expect("one thread").push(seen);
        nothing()
    }

    fn open(&self, _: &SandboxRef, _: Session, _: &[Intent]) -> Result<Box<dyn Sandbox>> {
        nothing()
    }

    fn commit(&self, _: &Intent, _: &dyn Observer) -> Result<()> {
        nothing()
    }

    fn undo(&self, _: &Intent, _: &dyn Observer) -> Result<RollbackReport> {
        nothing()
    }

    fn outcome(&self, _: &Intent) -> Result<Outcome> {
        nothing()
    }

    fn check_undo(&self, _: &Intent) -> Result<Vec<Conflict>> {
        nothing()
    }

    fn finish(&self, _: Intent) -> Result<FinishedCommit> {
        nothing()
    }

    fn cleanup(&self, _: &SandboxRef, _: &Target, _: Option<&Path>) -> Result<()> {
        nothing()
    }
}

#[test]
fn a_strategy_sees_the_options_of_its_configuration_and_of_the_resource() {
    let world = World::new();
    std::fs::create_dir_all(world.path().join("app")).expect("a directory");
    let config = "\
sandbox: { custom_strategies: { seeing: { options: { bucket: b, depth: 1 } } } }
resource_types: [{ name: shelf, sandbox_strategy: seeing }]
resources: { app: { type: shelf, at: app, options: { depth: 2, of: [x] } } }
";
    std::fs::write(world.path().join("escrow.yaml"), config).expect("a configuration");
    let seen = |named: bool| {
        let seen = Arc::<Mutex<Vec<Options>>>::default();
        let mut registry = Registry::builtin();
        let new = Registration::new(Arc::new(Seeing(Arc::clone(&seen))));
        registry.register(new).expect("the name is free");
        let mut options = ManagerOptions {
            registry,
            ..options(&world.path().join("state"))
        };
        options.sources.directory = Some(world.path().to_owned());
        options.sources.named = named.then(|| world.path().join("escrow.yaml"));
        let manager = Manager::open(options).expect("it opens");
        let here = world.path().to_owned();
        let made = manager.create_plan(None, &here, &["app".into()], Some("seeing"), &Unobserved);
        made.expect_err("it makes nothing");
        let seen = seen.lock().expect("one thread").clone();
        (seen, manager.notices().join("\n"))
    };
    let (told, _) = seen(true);
    let wanted = json!({"bucket": "b", "depth": 2, "of": ["x"]});
    assert!(told.len() >= 2, "the probe and the creation: {told:?}");
    assert!(told.iter().all(|one| json!(one) == wanted), "{told:?}");
    // Of a file that the user does not trust, nothing of it counts.
    let (told, notices) = seen(false);
    assert!(
        !told.is_empty() && told.iter().all(Options::is_empty),
        "{told:?}"
    );
    assert!(notices.contains("resources.app.options"), "{notices}");
}
