//! The policy, at every way in.

use std::io::Read;
use std::path::Path;

use escrow::error::{Error, Kind, Result};
use escrow::event::Unobserved;
use escrow::internals::store::LoggedOperation;
use escrow::manager::{Manager, ManagerOptions, RunRequest};
use escrow::model::{Action, Change};
use escrow::policy::Policy;
use escrow_testkit::signature::signature;
use escrow_testkit::user::rerun_test_as_user;
use escrow_testkit::{World, tree};
use serde_json::{Value, json};

use crate::commit_support::{Must, PLAIN, request};
use crate::support::{Sandboxed, assert_untouched, at, directory, options, read_policy};

/// A plan over `app`, made while everything was permitted, and still worked on as if it were.
struct Guarded {
    world: World,
    free: Sandboxed,
}

impl Guarded {
    fn new() -> Self {
        Self::by("filesystem_copy")
    }

    fn by(strategy: &str) -> Self {
        let world = World::new();
        let app = world.dir("app");
        tree::build(&app, "a.txt \"one\\n\"\nsrc/main.rs \"fn main() {}\\n\"\n");
        let free = Sandboxed::named(&world.home(), "try", &app, strategy);
        Self { world, free }
    }

    /// The same, with something done in the sandbox by means that are not authorized.
    fn after(script: &str) -> Self {
        let guarded = Self::new();
        guarded.free.native(script);
        guarded
    }

    /// The engine as `principal` meets it under these rules.
    fn under(&self, principal: &str, rules: Value) -> Manager {
        let policy = json!({"mode": "enforce", "rules": rules});
        let policy = read_policy(&policy).expect("it is a policy");
        self.with(principal, policy)
    }

    /// The same where everything is permitted but for what one rule denies.
    fn denying(&self, principal: &str, actions: &[&str], scope: &str) -> Manager {
        let all = Action::ALL.map(Action::as_str);
        let deny = json!({"deny": actions, "principal": "*", "scope": scope});
        self.under(
            principal,
            json!([{"allow": all, "principal": "*", "scope": "*"}, deny]),
        )
    }

    fn with(&self, principal: &str, policy: Policy) -> Manager {
        let options = ManagerOptions {
            principal: principal.to_owned(),
            policy,
            ..options(&self.world.home())
        };
        Manager::open(options).expect("opening is not authorized")
    }

    fn write(&self, manager: &Manager, path: impl AsRef<[u8]>) -> Result<Change> {
        let (plan, resource) = (&self.free.plan, &self.free.resource);
        manager.write(plan, resource, &at(path), &mut &b"x"[..])
    }

    fn commit(&self, manager: &Manager) -> Result<()> {
        let released = manager.commit(&self.free.plan, &request(PLAIN), &Unobserved);
        released.map(drop)
    }
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
    assert_eq!(manager.check_log(None).expect("it can be read").fault, None);
}

// rule S6, S7
#[test]
fn every_verb_is_authorized_and_every_denial_is_logged() {
    let guarded = Guarded::new();
    let (plan, resource) = (&guarded.free.plan, &guarded.free.resource);
    let (app, place) = (&guarded.free.original, guarded.world.path());
    let before = signature(app);
    let manager = guarded.under("agent", json!([]));
    let check = |answer: Result<()>, action: &str| {
        denied(&manager, answer, action, "no rule permits it");
    };
    check(manager.read(plan, resource, &at("a.txt")).map(drop), "read");
    check(guarded.write(&manager, "a.txt").map(drop), "write");
    check(manager.access(plan, resource, None).map(drop), "write");
    check(manager.diff(plan, None).map(drop), "diff");
    check(manager.diff(plan, Some(resource)).map(drop), "diff");
    check(manager.scratch_diff(plan, place).map(drop), "diff");
    check(manager.preview(plan, PLAIN).map(drop), "commit");
    check(guarded.commit(&manager), "commit");
    check(manager.rollback(plan, &Unobserved).map(drop), "rollback");
    check(manager.undo(plan, &Unobserved).map(drop), "undo");
    check(manager.cleanup(plan, false).map(drop), "cleanup");
    check(manager.recover().map(drop), "admin");
    let made = manager.create_sandbox(plan, resource, None, &Unobserved);
    check(made.map(drop), "create");
    let typed = [app.as_os_str().to_owned()];
    let made = manager.create_plan(None, app, &typed, None, &Unobserved);
    check(made.map(drop), "create");
    let other = guarded.world.dir("other");
    check(
        manager.add_resource(&directory("other", &other)).map(drop),
        "admin",
    );
    check(manager.remove_resource("app").map(drop), "admin");
    let taken = manager.take_resource(other.as_os_str(), Path::new("."));
    check(taken.map(drop), "create");
    assert_untouched(&before, app);
    let resources = guarded.free.manager.resources();
    assert_eq!(resources.expect("looking is not authorized").len(), 1);
    assert_eq!(guarded.free.listing(), [""; 0]);
}

// rule S6
#[test]
fn an_unreadable_policy_denies_everything() {
    let guarded = Guarded::new();
    let plan = &guarded.free.plan;
    let manager = guarded.with("user:root", Policy::unreadable("line 3 is odd"));
    let why = "the policy cannot be read: line 3 is odd";
    denied(&manager, manager.diff(plan, None), "diff", why);
    denied(&manager, guarded.commit(&manager), "commit", why);
    denied(&manager, manager.recover(), "admin", why);
    let said = manager.project_access("user:root", &guarded.free.resource);
    let said = said.expect("it is known");
    assert_eq!(said.len(), Action::ALL.len());
    let denied_all = said.iter().all(|one| !one.permitted && one.reason == why);
    assert!(denied_all, "{said:?}");
    let manager = guarded.with("", Policy::default());
    denied(&manager, manager.diff(plan, None), "diff", "it is empty");
}

// rule S6
#[test]
fn a_protected_path_is_not_released_however_it_was_written() {
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
        let guarded = Guarded::after(script);
        let before = signature(&guarded.free.original);
        let manager = guarded.denying("user:eve", &["write", "commit"], "app:.github/**");
        let why = "rule 2 says: deny write, commit to '*' on 'app:.github/**'";
        let preview = manager.preview(&guarded.free.plan, PLAIN);
        denied(&manager, preview, "commit", why);
        denied(&manager, guarded.commit(&manager), "commit", why);
        assert_untouched(&before, &guarded.free.original);
        denied(&manager, guarded.write(&manager, ".github/x"), "write", why);
        // What was denied is still there, and another process may release it.
        guarded.free.committed();
    }
}

// rule S6
#[test]
fn changes_of_what_is_protected_are_denied_and_no_others() {
    let (src, live) = ("app:src/**", "app:conf/live/**");
    for (action, scope, script, reason) in [
        ("write", src, "rm src/main.rs", "rule 2 says"),
        ("write", src, "rm -r src", "rule 2 says"),
        (
            "write",
            src,
            "chmod 700 src; chmod 600 src/main.rs",
            "rule 2 says",
        ),
        ("write", src, "mv src lib", "rule 2 says"),
        ("write", src, "rm -r src; ln -s /etc src", "rule 2 says"),
        ("write", src, "rm -r src; : > src", "rule 2 says"),
        ("write", src, "echo more >> a.txt", ""),
        // A link does not lead around it; what lies beside it is not protected.
        (
            "commit",
            live,
            "mkdir -p other/live; : > other/live/x; ln -s other conf",
            "rule 2 says",
        ),
        ("commit", live, "mkdir -p conf/draft; : > conf/draft/x", ""),
        // Bytes that are no text do not slip past.
        (
            "commit",
            "app:keys/*.pem",
            "mkdir keys; ln -s x \"$(printf 'keys/\\377\\376.PEM')\"",
            "keys/\\xff\\xfe.PEM",
        ),
    ] {
        let guarded = Guarded::after(script);
        let manager = guarded.denying("user:eve", &[action], scope);
        match reason {
            "" => guarded.commit(&manager).must(script),
            reason => denied(&manager, guarded.commit(&manager), "commit", reason),
        }
    }
}

// rule S6
#[test]
fn a10_names_that_some_file_system_takes_for_git() {
    rerun_test_as_user("policy::a10_names_that_some_file_system_takes_for_git");
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
        let before = signature(&guarded.free.original);
        let config = [name, b"/config"].concat();
        let manager = guarded.denying("user:eve", &["write", "commit"], "*:.git/**");
        denied(
            &manager,
            guarded.write(&manager, &config),
            "write",
            "rule 2 says",
        );
        guarded
            .free
            .write(&config, b"[core]\n")
            .expect("everything is permitted");
        denied(&manager, guarded.commit(&manager), "commit", "rule 2 says");
        assert_untouched(&before, &guarded.free.original);
    }
    for name in [".gitignore", "git", ".github/x", "x.git/config"] {
        let guarded = Guarded::new();
        let manager = guarded.denying("user:eve", &["write", "commit"], "*:.git/**");
        guarded.write(&manager, name).must("it is another name");
        guarded.commit(&manager).must("it is another name");
    }
}

// rule S6
#[test]
fn a_resource_in_another_does_not_lead_around_its_protection() {
    let guarded = Guarded::new();
    let write = |manager: &Manager, at_: &Path, path: &str| {
        let typed = [at_.as_os_str().to_owned()];
        let strategy = Some("filesystem_copy");
        let view = manager.create_plan(None, at_, &typed, strategy, &Unobserved);
        let view = view.must("it may be sandboxed");
        let resource = &view.sandboxes[0].resource;
        manager.write(&view.plan, resource, &at(path), &mut &b"x"[..])
    };
    // A directory of the protected resource, taken for one of its own.
    let manager = guarded.denying("agent", &["write", "commit"], "app:src/**");
    let inner = guarded.free.original.join("src");
    denied(
        &manager,
        write(&manager, &inner, "main.rs"),
        "write",
        "rule 2 says",
    );
    // The directory that the protected resource lies in.
    let outer = guarded.world.dir("outer");
    std::fs::create_dir_all(outer.join("app/src")).expect("it is ours");
    let nested = outer.join("app");
    let added = guarded
        .free
        .manager
        .add_resource(&directory("nested", &nested));
    added.must("everything is permitted");
    let manager = guarded.denying("agent", &["write"], "nested:src/**");
    denied(
        &manager,
        write(&manager, &outer, "app/src/x"),
        "write",
        "rule 2 says",
    );
    write(&manager, &outer, "app/other").must("that is not protected");
}

// rule S6
#[test]
fn what_is_permitted_by_path_is_permitted_and_nothing_else() {
    let allowed = ["diff", "commit", "write", "read"];
    let rules = json!([{"allow": allowed, "principal": "bot", "scope": "app:src/gen/**"}]);
    let guarded = Guarded::new();
    let (plan, resource) = (&guarded.free.plan, &guarded.free.resource);
    let manager = guarded.under("bot", rules);
    guarded
        .write(&manager, "src/gen/deep/x")
        .must("that is permitted");
    denied(
        &manager,
        guarded.write(&manager, "src/other"),
        "write",
        "no rule permits it",
    );
    let mut text = String::new();
    let file = manager.read(plan, resource, &at("src/gen/deep/x"));
    let read = file.must("that is permitted").read_to_string(&mut text);
    read.expect("it can be read");
    assert_eq!(text, "x");
    let diff = manager.diff(plan, None).must("it may be seen");
    assert_eq!(diff.resources.len(), 1);
    manager.preview(plan, PLAIN).must("it may be released");
    guarded.free.native("echo more >> a.txt");
    denied(&manager, manager.diff(plan, None), "diff", "'app:a.txt'");
    denied(&manager, guarded.commit(&manager), "commit", "'app:a.txt'");
    guarded.free.native("printf 'one\\n' > a.txt");
    guarded.commit(&manager).must("it may be released");
}

// rule S6
#[test]
fn several_denied_paths_are_counted() {
    let guarded = Guarded::after("mkdir keys; : > keys/a; : > keys/b");
    let manager = guarded.denying("user:eve", &["commit"], "app:**/keys/*");
    let text = guarded
        .commit(&manager)
        .expect_err("it is protected")
        .to_string();
    let start = "'user:eve' may not commit 'app:keys/a' and 1 path more: ";
    assert!(text.starts_with(start), "{text}");
    assert_eq!(
        last(&manager).path_count,
        3,
        "the directory and what is in it"
    );
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
        let said = manager.project_access(who, &guarded.free.resource);
        let said = said.expect("it is known");
        let mut all = said.iter();
        assert!(all.all(|one| one.principal == who && one.scope == "app"));
        let permitted = said.into_iter().filter(|one| one.permitted);
        permitted.map(|one| one.action).collect()
    };
    assert_eq!(may(&manager, "agent"), ["read", "diff", "run"]);
    assert_eq!(may(&manager, "agent:small"), ["read", "diff"]);
    assert_eq!(may(&manager, "user:eve"), [""; 0]);
    let all = Action::ALL.map(Action::as_str);
    assert_eq!(may(&guarded.free.manager, "agent"), all);
    let said = manager
        .check_access("agent", "read", "app")
        .must("it is known");
    let limited = said.reason.ends_with("on 'app:secret'");
    assert!(said.permitted && limited, "{said:?}");
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
    let place = guarded.world.path();
    let begun = manager.create_plan(Some("two"), place, &typed, None, &Unobserved);
    denied(&manager, begun, "create", "rule 2 says");
    let all = &guarded.free.manager;
    let left = (all.plans().must("").len(), all.resources().must("").len());
    assert_eq!(left, (1, 1), "nothing is left of it");
}

// rule S6
#[test]
fn without_isolation_working_is_releasing() {
    let guarded = Guarded::by("none");
    let (plan, resource) = (&guarded.free.plan, &guarded.free.resource);
    let before = signature(&guarded.free.original);
    let manager = guarded.denying("agent", &["commit"], "app:.github/**");
    denied(
        &manager,
        guarded.write(&manager, ".github/x"),
        "commit",
        "rule 2 says",
    );
    let access = manager.access(plan, resource, None);
    denied(&manager, access, "commit", "rule 2 says");
    assert_untouched(&before, &guarded.free.original);
    guarded
        .write(&manager, "b.txt")
        .must("that is not protected");
    let manager = guarded.denying("agent", &["admin"], "*");
    let request = RunRequest::new(["false"], &guarded.free.original);
    let ran = manager.run_unconfined(plan, &request);
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
    let (plan, app) = (&guarded.free.plan, &guarded.free.original);
    guarded.write(&manager, "a.txt").must("it is permitted");
    manager.rollback(plan, &Unobserved).must("it is permitted");
    guarded.write(&manager, "a.txt").must("it is permitted");
    guarded.commit(&manager).must("it is permitted");
    let committed = manager
        .resolve_committed(Some("try"), app)
        .must("it is there");
    manager
        .undo(&committed, &Unobserved)
        .must("it is permitted");
    let undone = manager.resolve_plan(Some("try"), app).must("it is there");
    manager.cleanup(&undone, false).must("it is permitted");
    manager.recover().must("it is permitted");
    let log = manager.log(None).must("it can be read");
    assert!(log.iter().all(|one| one.outcome == "done"), "{log:?}");
    let about = |one: &LoggedOperation| one.operation.resources == ["app"];
    let begin = |one: &LoggedOperation| one.operation.action == "plan create";
    assert!(log.iter().all(|one| about(one) || begin(one)), "{log:?}");
    assert_eq!(manager.check_log(None).must("it can be read").fault, None);
}
