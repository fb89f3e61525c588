//! The policy, at every way in.

use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use escrow::commit::CommitTerms;
use escrow::error::{Error, Kind, Result};
use escrow::event::Unobserved;
use escrow::internals::store::{LoggedOperation, Plan, Resource};
use escrow::manager::{CommitRequest, Manager, ManagerOptions, NewResource, RunRequest};
use escrow::model::Action;
use escrow::policy::Policy;
use escrow::strategy::OnConflict;
use escrow_testkit::signature::signature;
use escrow_testkit::{World, tree};
use serde_json::{Value, json};

use crate::support::{assert_untouched, at, open, options, sh};

const TERMS: CommitTerms = CommitTerms {
    on_conflict: OnConflict::Abort,
    strict: false,
    allow_partial: false,
};

/// A plan over `app`, made while everything was permitted.
struct Guarded {
    world: World,
    app: PathBuf,
    plan: Plan,
    resource: Resource,
}

impl Guarded {
    fn new() -> Self {
        let world = World::new();
        let app = world.dir("app");
        tree::build(&app, "a.txt \"one\\n\"\nsrc/main.rs \"fn main() {}\\n\"\n");
        let manager = open(&world.home());
        let typed = [app.as_os_str().to_owned()];
        let strategy = Some("filesystem_copy");
        let view = manager
            .create_plan(Some("try"), &app, &typed, strategy, &Unobserved)
            .expect("everything is permitted");
        Self {
            resource: view.sandboxes[0].resource.clone(),
            plan: view.plan,
            world,
            app,
        }
    }

    /// The engine as `principal` meets it under these rules.
    fn under(&self, principal: &str, rules: Value) -> Manager {
        let policy = json!({"mode": "enforce", "rules": rules});
        self.with(
            principal,
            Policy::from_value(&policy).expect("it is a policy"),
        )
    }

    fn with(&self, principal: &str, policy: Policy) -> Manager {
        let options = ManagerOptions {
            principal: principal.to_owned(),
            policy,
            ..options(&self.world.home())
        };
        Manager::open(options).expect("opening is not judged")
    }

    /// Works in the sandbox by means that no process validates.
    fn native(&self, script: &str) {
        let manager = open(&self.world.home());
        let access = manager.access(&self.plan, &self.resource, None);
        let access = access.expect("everything is permitted");
        let tree = access.cwd.expect("it has a path").as_path().to_owned();
        sh(&tree, script);
    }

    fn commit(&self, manager: &Manager) -> Result<()> {
        let request = CommitRequest {
            message: None,
            terms: TERMS,
            expected: None,
        };
        let released = manager.commit(&self.plan, &request, &Unobserved);
        released.map(drop)
    }
}

fn may_all_but(denied: Value) -> Value {
    let all = Action::ALL.map(Action::as_str);
    json!([{"allow": all, "principal": "*", "scope": "*"}, denied])
}

fn last(manager: &Manager) -> LoggedOperation {
    let log = manager.log(None).expect("the log can be read");
    log.into_iter().next_back().expect("something was done")
}

/// That it was denied, for this reason, and is in the log so.
#[track_caller]
fn denied<T>(manager: &Manager, answer: Result<T>, action: &str, reason: &str) {
    let Err(error) = answer else {
        panic!("{action} was permitted");
    };
    let text = error.to_string();
    assert_eq!(error.kind(), Kind::Denied, "{action}: {text}");
    let Error::Denied { decision, .. } = &error else {
        panic!("{action}: {text}");
    };
    assert!(text.contains(reason), "{action}: {text}");
    assert!(!error.hints().is_empty());
    let entry = last(manager);
    assert_eq!(entry.outcome, "denied", "{action}: {entry:?}");
    assert_eq!(entry.operation.action, action);
    assert_eq!(entry.operation.principal, manager.principal());
    assert_eq!(entry.reason.as_deref(), Some(decision.reason.as_str()));
    assert_eq!(manager.check_log().expect("it can be read").fault, None);
}

// rule S6, S7
#[test]
fn every_verb_is_judged_and_every_denial_is_logged() {
    let guarded = Guarded::new();
    let (plan, resource) = (&guarded.plan, &guarded.resource);
    let before = signature(&guarded.app);
    let manager = guarded.under("agent", json!([]));
    let why = "no rule permits it";
    let path = at("a.txt");
    let read = manager.read(plan, resource, &path).map(drop);
    denied(&manager, read, "read", why);
    let write = manager.write(plan, resource, &path, &mut &b"x"[..]);
    denied(&manager, write, "write", why);
    denied(&manager, manager.access(plan, resource, None), "write", why);
    denied(&manager, manager.diff(plan, None), "diff", why);
    denied(&manager, manager.diff(plan, Some(resource)), "diff", why);
    let scratch = manager.scratch_diff(plan, guarded.world.path());
    denied(&manager, scratch, "diff", why);
    denied(&manager, manager.preview(plan, TERMS), "commit", why);
    denied(&manager, guarded.commit(&manager), "commit", why);
    denied(
        &manager,
        manager.rollback(plan, &Unobserved),
        "rollback",
        why,
    );
    denied(&manager, manager.undo(plan, &Unobserved), "undo", why);
    denied(&manager, manager.cleanup(plan, false), "cleanup", why);
    denied(&manager, manager.recover(), "admin", why);
    let made = manager.create_sandbox(plan, resource, None, &Unobserved);
    denied(&manager, made, "create", why);
    let typed = [guarded.app.as_os_str().to_owned()];
    let made = manager.create_plan(None, &guarded.app, &typed, None, &Unobserved);
    denied(&manager, made, "create", why);
    let other = guarded.world.dir("other");
    let new = NewResource {
        name: "other",
        kind: Some("fs-directory"),
        at: &other,
        parent: None,
        strategy: None,
        allow_root: false,
    };
    denied(&manager, manager.add_resource(&new), "admin", why);
    denied(&manager, manager.remove_resource("app"), "admin", why);
    let taken = manager.take_resource(other.as_os_str(), Path::new("."));
    denied(&manager, taken, "create", why);
    assert_untouched(&before, &guarded.app);
    let all = open(&guarded.world.home());
    assert_eq!(all.resources().expect("looking is not judged").len(), 1);
    assert!(
        all.diff(plan, None).expect("it is there").resources[0]
            .diff
            .is_empty()
    );
}

// rule S6
#[test]
fn an_unreadable_policy_denies_everything() {
    let guarded = Guarded::new();
    let manager = guarded.with("user:root", Policy::unreadable("line 3 is odd"));
    let why = "the policy cannot be read: line 3 is odd";
    denied(&manager, manager.diff(&guarded.plan, None), "diff", why);
    denied(&manager, guarded.commit(&manager), "commit", why);
    denied(&manager, manager.recover(), "admin", why);
    let said = manager.project_access("user:root", &guarded.resource);
    let said = said.expect("it is known");
    assert_eq!(said.len(), Action::ALL.len());
    let denied_all = said.iter().all(|one| !one.permitted && one.reason == why);
    assert!(denied_all, "{said:?}");
    let manager = guarded.with("", Policy::default());
    denied(
        &manager,
        manager.diff(&guarded.plan, None),
        "diff",
        "it is empty",
    );
}

// rule S6
#[test]
fn a_protected_path_is_not_released_however_it_was_written() {
    let rule = json!({"deny": ["write", "commit"], "principal": "*", "scope": "app:.github/**"});
    for script in [
        "mkdir -p .github/workflows; echo x > .github/workflows/ci.yml",
        "mkdir .github; : > \"$(printf '.github/\\377')\"",
        "mkdir .github; : > \"$(printf '.github/a\\nb')\"",
        "mkdir .github",
        "ln -s src .github",
        "mkdir .GitHub; : > .GitHub/x",
        "mkdir '.github.'; : > '.github./x'",
        "mkdir '.github '; : > '.github /x'",
        ": > '.github\\x'",
        "echo more >> a.txt; mkdir .github; : > .github/x",
    ] {
        let guarded = Guarded::new();
        let before = signature(&guarded.app);
        guarded.native(script);
        let manager = guarded.under("user:eve", may_all_but(rule.clone()));
        let why = "rule 2 says: deny write, commit to '*' on 'app:.github/**'";
        denied(
            &manager,
            manager.preview(&guarded.plan, TERMS),
            "commit",
            why,
        );
        denied(&manager, guarded.commit(&manager), "commit", why);
        assert_untouched(&before, &guarded.app);
        let path = at(".github/x");
        let written = manager.write(&guarded.plan, &guarded.resource, &path, &mut &b"x"[..]);
        denied(&manager, written, "write", why);
        // What was denied is still there, and another process may release it.
        let all = open(&guarded.world.home());
        guarded.commit(&all).expect("everything is permitted");
    }
}

// rule S6
#[test]
fn removing_what_is_protected_is_denied_too() {
    let rule = json!({"deny": ["write"], "principal": "*", "scope": "app:src/**"});
    for script in [
        "rm src/main.rs",
        "rm -r src",
        "chmod 700 src; chmod 600 src/main.rs",
        "mv src lib",
        "rm -r src; ln -s /etc src",
        "rm -r src; : > src",
    ] {
        let guarded = Guarded::new();
        guarded.native(script);
        let manager = guarded.under("user:eve", may_all_but(rule.clone()));
        denied(&manager, guarded.commit(&manager), "commit", "rule 2 says");
    }
    let guarded = Guarded::new();
    guarded.native("echo more >> a.txt");
    let manager = guarded.under("user:eve", may_all_but(rule));
    guarded
        .commit(&manager)
        .expect("nothing protected is changed");
}

// rule S6
#[test]
fn a_link_does_not_lead_around_a_protected_path() {
    let rule = json!({"deny": ["commit"], "principal": "*", "scope": "app:conf/live/**"});
    let guarded = Guarded::new();
    guarded.native("mkdir -p other/live; : > other/live/x; ln -s other conf");
    let manager = guarded.under("user:eve", may_all_but(rule.clone()));
    denied(&manager, guarded.commit(&manager), "commit", "rule 2 says");
    let guarded = Guarded::new();
    guarded.native("mkdir -p conf/draft; : > conf/draft/x");
    let manager = guarded.under("user:eve", may_all_but(rule));
    guarded
        .commit(&manager)
        .expect("what lies beside it is not protected");
}

// rule S6
#[test]
fn a10_names_that_some_file_system_takes_for_git() {
    let rule = json!({"deny": ["write", "commit"], "principal": "*", "scope": "*:.git/**"});
    for name in [
        &b".git"[..],
        b".GIT",
        b".gIt",
        b".git ",
        b".git.",
        b".git. .",
        b"git~1",
        b"GIT~1",
        b".git::$INDEX_ALLOCATION",
        b".git\\hooks",
        b".g\xe2\x80\x8cit",
    ] {
        let guarded = Guarded::new();
        let before = signature(&guarded.app);
        let all = open(&guarded.world.home());
        let config = at([name, b"/config"].concat());
        let (plan, resource) = (&guarded.plan, &guarded.resource);
        let manager = guarded.under("user:eve", may_all_but(rule.clone()));
        let written = manager.write(plan, resource, &config, &mut &b"x"[..]);
        denied(&manager, written, "write", "rule 2 says");
        all.write(plan, resource, &config, &mut &b"[core]\n"[..])
            .expect("everything is permitted");
        denied(&manager, guarded.commit(&manager), "commit", "rule 2 says");
        assert_untouched(&before, &guarded.app);
    }
    for name in [".gitignore", "git", ".github/x", "x.git/config"] {
        let guarded = Guarded::new();
        let manager = guarded.under("user:eve", may_all_but(rule.clone()));
        let path = at(name);
        let written = manager.write(&guarded.plan, &guarded.resource, &path, &mut &b"x"[..]);
        written.expect("it is another name");
        guarded.commit(&manager).expect("it is another name");
    }
}

// rule S6
#[test]
fn a_resource_in_another_does_not_lead_around_its_protection() {
    let rule = json!({"deny": ["write", "commit"], "principal": "*", "scope": "app:src/**"});
    let guarded = Guarded::new();
    let manager = guarded.under("agent", may_all_but(rule));
    // A directory of the protected resource, taken for one of its own.
    let inner = guarded.app.join("src");
    let typed = [inner.as_os_str().to_owned()];
    let strategy = Some("filesystem_copy");
    let view = manager.create_plan(Some("in"), &inner, &typed, strategy, &Unobserved);
    let view = view.expect("it may be sandboxed");
    let resource = &view.sandboxes[0].resource;
    assert_eq!(resource.name, "src");
    let path = at("main.rs");
    let written = manager.write(&view.plan, resource, &path, &mut &b"x"[..]);
    denied(&manager, written, "write", "rule 2 says");
    // The directory that the protected resource lies in.
    let outer = guarded.world.dir("outer");
    let all = open(&guarded.world.home());
    std::fs::create_dir_all(outer.join("app/src")).expect("it is ours");
    let new = NewResource {
        name: "nested",
        kind: Some("fs-directory"),
        at: &outer.join("app"),
        parent: None,
        strategy: None,
        allow_root: false,
    };
    all.add_resource(&new).expect("everything is permitted");
    let rule = json!({"deny": ["write"], "principal": "*", "scope": "nested:src/**"});
    let manager = guarded.under("agent", may_all_but(rule));
    let typed = [outer.as_os_str().to_owned()];
    let view = manager.create_plan(Some("out"), &outer, &typed, strategy, &Unobserved);
    let view = view.expect("it may be sandboxed");
    let resource = &view.sandboxes[0].resource;
    let write = |path: &str| manager.write(&view.plan, resource, &at(path), &mut &b"x"[..]);
    denied(&manager, write("app/src/x"), "write", "rule 2 says");
    write("app/other").expect("that is not protected");
}

// rule S6
#[test]
fn what_is_permitted_by_path_is_permitted_and_nothing_else() {
    let rules = json!([
        {"allow": ["diff", "commit", "write", "read"], "principal": "bot", "scope": "app:src/gen/**"},
    ]);
    let guarded = Guarded::new();
    let (plan, resource) = (&guarded.plan, &guarded.resource);
    let manager = guarded.under("bot", rules.clone());
    let write = |path: &str| manager.write(plan, resource, &at(path), &mut &b"x"[..]);
    write("src/gen/deep/x").expect("that is permitted");
    denied(&manager, write("src/other"), "write", "no rule permits it");
    let mut text = String::new();
    let mut file = manager.read(plan, resource, &at("src/gen/deep/x"));
    let file = file.as_mut().expect("that is permitted");
    file.read_to_string(&mut text).expect("it can be read");
    assert_eq!(text, "x");
    assert_eq!(
        manager
            .diff(plan, None)
            .expect("it may be seen")
            .resources
            .len(),
        1
    );
    manager.preview(plan, TERMS).expect("it may be released");
    guarded.native("echo more >> a.txt");
    denied(&manager, manager.diff(plan, None), "diff", "'app:a.txt'");
    denied(&manager, guarded.commit(&manager), "commit", "'app:a.txt'");
    guarded.native("printf 'one\\n' > a.txt");
    guarded.commit(&manager).expect("it may be released");
}

// rule S6
#[test]
fn several_denied_paths_are_counted() {
    let guarded = Guarded::new();
    guarded.native("mkdir keys; : > keys/a; : > keys/b");
    let rule = json!({"deny": ["commit"], "principal": "*", "scope": "app:**/keys/*"});
    let manager = guarded.under("user:eve", may_all_but(rule));
    let error = guarded.commit(&manager).expect_err("it is protected");
    let text = error.to_string();
    assert!(
        text.starts_with("'user:eve' may not commit 'app:keys/a' and 1 path more: "),
        "{text}"
    );
    let entry = last(&manager);
    assert_eq!(entry.path_count, 3, "the directory and what is in it");
}

#[test]
fn what_a_principal_may_do_on_a_resource() {
    let guarded = Guarded::new();
    let rules = json!([
        {"allow": ["read", "diff", "run"], "principal": "agent*", "scope": "app"},
        {"deny": ["run"], "principal": "agent:small", "scope": "*"},
        {"deny": ["read"], "principal": "*", "scope": "app:secret"},
    ]);
    let manager = guarded.under("user:eve", rules);
    let may = |manager: &Manager, who: &str| -> Vec<String> {
        let said = manager.project_access(who, &guarded.resource);
        let said = said.expect("it is known");
        assert!(
            said.iter()
                .all(|one| one.principal == who && one.scope == "app")
        );
        let permitted = said.into_iter().filter(|one| one.permitted);
        permitted.map(|one| one.action).collect()
    };
    assert_eq!(may(&manager, "agent"), ["read", "diff", "run"]);
    assert_eq!(may(&manager, "agent:small"), ["read", "diff"]);
    assert!(may(&manager, "user:eve").is_empty());
    let local = open(&guarded.world.home());
    let all = Action::ALL.map(|action| action.as_str().to_owned());
    assert_eq!(may(&local, "agent"), all);
    let said = manager
        .check_access("agent", "read", "app")
        .expect("it is known");
    assert!(
        said.permitted && said.reason.ends_with("on 'app:secret'"),
        "{said:?}"
    );
}

// rule S6
#[test]
fn who_may_not_clean_up_can_still_fail_to_begin_a_plan() {
    let guarded = Guarded::new();
    let rules = json!([
        {"allow": ["create"], "principal": "agent", "scope": "*"},
        {"deny": ["create"], "principal": "agent", "scope": "second"},
    ]);
    let manager = guarded.under("agent", rules);
    let (first, second) = (guarded.world.dir("first"), guarded.world.dir("second"));
    let typed = [first, second].map(|dir| dir.into_os_string());
    let begun = manager.create_plan(Some("two"), &guarded.app, &typed, None, &Unobserved);
    denied(&manager, begun, "create", "rule 2 says");
    let all = open(&guarded.world.home());
    assert_eq!(
        all.plans().expect("it can be read").len(),
        1,
        "nothing is left of it"
    );
    assert_eq!(all.resources().expect("it can be read").len(), 1);
}

// rule S6
#[test]
fn bytes_that_are_no_text_do_not_slip_past() {
    let guarded = Guarded::new();
    let rule = json!({"deny": ["commit"], "principal": "*", "scope": "app:keys/*.pem"});
    let name = std::ffi::OsStr::from_bytes(b"\xff\xfe.PEM");
    let manager = open(&guarded.world.home());
    let access = manager.access(&guarded.plan, &guarded.resource, None);
    let access = access.expect("everything is permitted");
    let tree = access.cwd.expect("it has a path").as_path().to_owned();
    std::fs::create_dir(tree.join("keys")).expect("it is ours");
    symlink("x", tree.join("keys").join(name)).expect("it is ours");
    let manager = guarded.under("user:eve", may_all_but(rule));
    denied(
        &manager,
        guarded.commit(&manager),
        "commit",
        "keys/\\xff\\xfe.PEM",
    );
}

// rule S6
#[test]
fn without_isolation_working_is_releasing() {
    let world = World::new();
    let app = world.dir("app");
    tree::build(&app, "a.txt \"one\\n\"\n");
    let all = open(&world.home());
    let typed = [app.as_os_str().to_owned()];
    let view = all.create_plan(Some("try"), &app, &typed, Some("none"), &Unobserved);
    let view = view.expect("everything is permitted");
    let resource = view.sandboxes[0].resource.clone();
    let guarded = Guarded {
        resource: resource.clone(),
        plan: view.plan,
        world,
        app,
    };
    let before = signature(&guarded.app);
    let plan = &guarded.plan;
    let rule = json!({"deny": ["commit"], "principal": "*", "scope": "app:.github/**"});
    let manager = guarded.under("agent", may_all_but(rule));
    let write = |path: &str| manager.write(plan, &resource, &at(path), &mut &b"x"[..]);
    denied(&manager, write(".github/x"), "commit", "rule 2 says");
    denied(
        &manager,
        manager.access(plan, &resource, None),
        "commit",
        "rule 2 says",
    );
    assert_untouched(&before, &guarded.app);
    write("b.txt").expect("that is not protected");
    let rule = json!({"deny": ["admin"], "principal": "agent", "scope": "*"});
    let manager = guarded.under("agent", may_all_but(rule));
    let ran = manager.run_unconfined(plan, &RunRequest::new(["false"], &guarded.app));
    denied(&manager, ran, "admin", "rule 2 says");
}

// rule S6, S7
#[test]
fn who_is_permitted_everything_can_do_everything() {
    let guarded = Guarded::new();
    let all = Action::ALL.map(Action::as_str);
    let rules = json!([{"allow": all, "principal": "user:eve", "scope": "app"},
                       {"allow": ["create", "admin"], "principal": "user:eve", "scope": "*"}]);
    let manager = guarded.under("user:eve", rules);
    let (plan, resource) = (&guarded.plan, &guarded.resource);
    let write = |text: &str| manager.write(plan, resource, &at("a.txt"), &mut text.as_bytes());
    write("two\n").expect("it is permitted");
    manager
        .rollback(plan, &Unobserved)
        .expect("it is permitted");
    write("three\n").expect("it is permitted");
    guarded.commit(&manager).expect("it is permitted");
    let committed = manager.resolve_committed(Some("try"), &guarded.app);
    let committed = committed.expect("it is there");
    manager
        .undo(&committed, &Unobserved)
        .expect("it is permitted");
    let undone = manager.resolve_plan(Some("try"), &guarded.app);
    let undone = undone.expect("it is there");
    manager.cleanup(&undone, false).expect("it is permitted");
    manager.recover().expect("it is permitted");
    let log = manager.log(None).expect("it can be read");
    assert!(log.iter().all(|one| one.outcome == "done"), "{log:?}");
    let about = |one: &LoggedOperation| one.operation.resources == ["app"];
    let begin = |one: &LoggedOperation| one.operation.action == "plan create";
    assert!(log.iter().all(|one| about(one) || begin(one)), "{log:?}");
    assert_eq!(manager.check_log().expect("it can be read").fault, None);
}
