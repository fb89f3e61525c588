//! A world with one plan, ready to be committed, made in milliseconds.
//!
//! Promise: every world of a scenario is the same, down to the times. The sandbox of an overlay holds what the kernel
//! left under a real mount; that is done once, and its layer is copied into each world.

use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use escrow::event::Unobserved;
use escrow::internals::store::Plan;
use escrow::manager::{Manager, ManagerOptions};

use crate::container::Overlaid;
use crate::layer::Layer;
use crate::*;
use crate::{later, scenario, snapshots};

/// The name of every plan.
pub(crate) const PLAN: &str = "t";

/// One resource of the plan.
#[derive(Debug, Clone)]
pub(crate) struct Member {
    pub(crate) kind: Kind,
    pub(crate) original: PathBuf,
    pub(crate) sides: Arc<Sides>,
    /// Where the sandbox keeps new files.
    pub(crate) inside: PathBuf,
}

/// The world and the plan in it.
#[derive(Debug)]
pub(crate) struct Subject {
    pub(crate) cli: Cli,
    pub(crate) home: PathBuf,
    /// Where the originals lie.
    pub(crate) place: PathBuf,
    pub(crate) members: Vec<Member>,
    // Before the world that it is mounted over.
    _overlaid: Option<Overlaid>,
    // Last: removed after everything else.
    _world: Option<World>,
}

/// The engine, opened on a home.
pub(crate) fn manager(home: &Path) -> Manager {
    Manager::open(options(home)).unwrap_or_else(|error| {
        panic!(
            "no manager on {}: {}",
            home.display(),
            escrow::error::chain(&error)
        )
    })
}

/// What the engine is opened with.
pub(crate) fn options(home: &Path) -> ManagerOptions {
    ManagerOptions {
        principal: "torture".to_owned(),
        patience: Duration::from_secs(20),
        ..ManagerOptions::new(home)
    }
}

pub(crate) const LABELS: [&str; 3] = ["A", "B", "C"];

impl Subject {
    /// Makes the world of a scenario, in memory.
    pub(crate) fn new(scenario: &Scenario) -> Self {
        let world = match scenario.members.contains(&Kind::Snapshot) {
            true => World::under(&snapshots::ground()),
            false => World::new(),
        };
        let cli = Cli::new(&world, &crate::binary());
        let (home, place) = (world.home(), world.dir("originals"));
        Self::furnish(scenario, cli, home, place, Some(world))
    }

    /// The same for a program that has a bug on purpose.
    pub(crate) fn bugged(mut self, bug: Option<&str>) -> Self {
        if let Some(bug) = bug {
            self.cli = self.cli.clone().env("ESCROW_SEEDED_BUG", bug);
        }
        self
    }

    /// The same in a world that stays.
    pub(crate) fn within(scenario: &Scenario, world: &World) -> Self {
        let cli = Cli::new(world, &crate::binary());
        let (home, place) = (world.home(), world.dir("originals"));
        Self::furnish(scenario, cli, home, place, None)
    }

    /// Makes one file of each sandbox anew, so that no disk has it yet.
    pub(crate) fn add_again(&self) -> Result<(), String> {
        for (member, label) in self.members.iter().zip(LABELS) {
            if member.kind != Kind::None {
                scenario::add_again(&member.inside, label)
                    .map_err(|error| format!("{}: {error}", member.inside.display()))?;
            }
        }
        Ok(())
    }

    fn furnish(
        scenario: &Scenario,
        cli: Cli,
        home: PathBuf,
        place: PathBuf,
        world: Option<World>,
    ) -> Self {
        let size = scenario.size;
        let mut members = Vec::new();
        for (kind, label) in scenario.members.iter().zip(LABELS) {
            let original = place.join(label);
            fs::create_dir(&original).expect("a new directory");
            scenario::build(&original, size, label);
            members.push(Member {
                kind: *kind,
                original,
                sides: sides(size, label, *kind),
                inside: PathBuf::new(),
            });
        }
        if let Some(last) = members.last().filter(|_| scenario.refuses) {
            let label = LABELS[members.len() - 1];
            let switch = place.with_file_name(format!("{label}.refuses"));
            assert!(last.original.ends_with(label));
            write(switch, REFUSED);
        }
        let overlaid = match (scenario.members.contains(&Kind::Container), &world) {
            (true, Some(world)) => Some(Overlaid::over(world.path())),
            _ => None,
        };
        let manager = manager(&home);
        let plan = manager
            .create_plan(Some(PLAN), &place, &[], None, &Unobserved)
            .expect("a plan")
            .plan;
        for (member, label) in members.iter_mut().zip(LABELS) {
            sandbox(&manager, &plan, member, &place, (size, label));
        }
        Self {
            cli,
            home,
            place,
            members,
            _overlaid: overlaid,
            _world: world,
        }
    }
}

/// Makes the sandbox of one member and everything that is changed in it.
fn sandbox(
    manager: &Manager,
    plan: &Plan,
    member: &mut Member,
    place: &Path,
    (size, label): (Size, &str),
) {
    let resource = manager
        .take_resource(member.original.as_os_str(), place)
        .expect("a resource");
    let made = manager
        .create_sandbox(plan, &resource, Some(member.kind.strategy()), &Unobserved)
        .unwrap_or_else(|error| panic!("no sandbox: {}", escrow::error::chain(&error)));
    let edit = |root: &Path| {
        scenario::edit(root, size, label, Where::Copy)
            .unwrap_or_else(|error| panic!("cannot edit {}: {error}", root.display()));
    };
    match member.kind {
        Kind::Copy | Kind::Cow | Kind::Snapshot | Kind::Container => {
            let access = manager.access(plan, &resource, None);
            let path = access.expect("a copy has a path").cwd;
            let path = path.expect("a copy has a path").as_path().to_owned();
            edit(&path);
            member.inside = path;
        }
        Kind::Overlay => {
            member.inside = made.view.sandbox.area.as_path().join("layers/0");
            layer(size, label).write(&member.inside);
        }
        Kind::None => {
            edit(&member.original);
            // What isolates nothing stays as it is, whatever happens.
            let now = signature(&member.original);
            member.sides = Arc::new(Sides {
                old: now.clone(),
                new: now,
            });
            member.inside.clone_from(&member.original);
        }
    }
}

type Key = (Size, String, bool);

/// The states that were found out before.
fn sides(size: Size, label: &str, kind: Kind) -> Arc<Sides> {
    static KNOWN: LazyLock<Mutex<HashMap<Key, Arc<Sides>>>> = LazyLock::new(Mutex::default);
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    let key = (size, label.to_owned(), kind == Kind::Overlay);
    let sides = known
        .entry(key)
        .or_insert_with(|| Arc::new(scenario::sides(size, label, kind)));
    Arc::clone(sides)
}

/// The layer of a member, made under a real mount when it is first needed.
fn layer(size: Size, label: &str) -> Arc<Layer> {
    static KNOWN: LazyLock<Mutex<HashMap<Key, Arc<Layer>>>> = LazyLock::new(Mutex::default);
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    let key = (size, label.to_owned(), true);
    let layer = known
        .entry(key)
        .or_insert_with(|| Arc::new(make_layer(size, label)));
    Arc::clone(layer)
}

pub(crate) const EDIT: &str = "ESCROW_TORTURE_EDIT";

fn make_layer(size: Size, label: &str) -> Layer {
    let world = World::new();
    let place = world.dir("originals");
    let original = world.dir(format!("originals/{label}"));
    scenario::build(&original, size, label);
    let manager = manager(&world.home());
    let typed = [original.clone().into_os_string()];
    let plan = manager
        .create_plan(Some(PLAN), &place, &typed, Some("overlay"), &Unobserved)
        .expect("a plan with an overlay");
    let area = plan.sandboxes[0].sandbox.area.as_path().to_owned();
    // What the engine writes itself carries marks that the kernel does not make.
    let path = escrow::model::ResourcePath::parse(b"modify.txt").expect("a path");
    let resource = &plan.sandboxes[0].resource;
    manager
        .write(&plan.plan, resource, &path, &mut &b"overwritten later"[..])
        .expect("a file of the sandbox");
    let exe = std::env::current_exe().expect("a test knows itself");
    let mount = OverlayMount {
        lower: &original,
        upper: &area.join("layers/0"),
        work: &area.join("work"),
        xattr: XattrKind::User,
    };
    let word = match size {
        Size::Tiny => "tiny",
        Size::Full => "full",
    };
    mount.run(&format!(
        "{EDIT}='{word} {label}' exec '{}' --exact subject::edits_when_told_to --nocapture",
        exe.display()
    ));
    Layer::read(&area.join("layers/0"))
}

/// Started under a mount, as a program that works in a sandbox.
#[test]
fn edits_when_told_to() {
    let Ok(told) = std::env::var(EDIT) else {
        return;
    };
    let (word, label) = told.split_once(' ').expect("a size and a label");
    let size = match word.starts_with("tiny") {
        true => Size::Tiny,
        false => Size::Full,
    };
    let edited = match word.ends_with("again") {
        true => later::edit(Path::new("."), size, label),
        false => scenario::edit(Path::new("."), size, label, Where::Layer),
    };
    edited.expect("edits in the sandbox");
}
