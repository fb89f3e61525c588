//! What several files of these tests do with files, sandboxes and the command line.

use crate::*;

pub(crate) fn entries(dir: &Path) -> usize {
    fs::read_dir(dir).expect("it is there").count()
}

/// The calls that put things in place.
pub(crate) const MOVES: &[&str] = &["renameat2"];

/// The calls that stage.
pub(crate) const LINKS: &[&str] = &["linkat"];

/// The document of a command that fails with `code`.
#[track_caller]
pub(crate) fn failed(cli: &Cli, line: &str, code: i32) -> Value {
    let outcome = cli.run([words("--json"), words(line)].concat());
    assert_eq!(outcome.status, code, "{line}: {}", outcome.stdout_text());
    assert_eq!(outcome.stderr_text(), "", "{line}");
    serde_json::from_str(&outcome.stdout_text()).expect("one document")
}

/// Where native tools work in a copy.
pub(crate) fn copy_of(cli: &Cli, plan: &str, resource: &str) -> PathBuf {
    PathBuf::from(cli.ok(["path", plan, resource]).trim_end())
}

/// Kills a command before its `n`th call of these.
#[track_caller]
pub(crate) fn kill(cli: &Cli, line: &str, calls: &'static [&'static str], n: u64) {
    let run = cli.stepper(line).only(calls).fault(n, Fault::Kill);
    assert!(run.hit.is_some(), "{line} makes {n} such calls");
}

/// What `recover` did with the only plan that needed it.
#[track_caller]
pub(crate) fn recovered(cli: &Cli) -> Value {
    let answer = json(cli, "recover");
    let all = list(&answer["recovered"]);
    assert_eq!(all.len(), 1, "{answer}");
    assert_eq!(json(cli, "status")["unfinished"], value!([]));
    all[0].clone()
}

/// Whether a file, or one somewhere in a directory, has these bytes.
pub(crate) fn holds(at: &Path, bytes: &str) -> bool {
    match fs::read_dir(at) {
        Ok(entries) => entries
            .map(|entry| entry.expect("it can be read").path())
            .any(|path| holds(&path, bytes)),
        Err(_) => fs::read(at).is_ok_and(|found| found == bytes.as_bytes()),
    }
}

/// Nothing waits to be recovered, and the plan can go.
#[track_caller]
pub(crate) fn assert_not_stuck(cli: &Cli, plan: &str) {
    assert_eq!(json(cli, "status")["unfinished"], value!([]));
    cli.ok(["cleanup", plan]);
    let expected = "cleaned_up";
    assert_eq!(json(cli, &format!("plan show {plan}"))["state"], expected);
}

pub(crate) fn notes(done: &Value) -> Vec<String> {
    let notes = list(&done["resources"][0]["notes"]);
    let text = |note: &Value| format!("{}: {}", note["path"], note["what"]).replace('"', "");
    notes.iter().map(text).collect()
}

/// The values of one key in a list of objects.
#[track_caller]
pub(crate) fn column<'a>(list: &'a Value, key: &str) -> Vec<&'a str> {
    let rows = list.as_array().expect("a list").iter();
    rows.filter_map(|row| row[key].as_str()).collect()
}

/// Every action.
pub(crate) const ALL: &str = "[create, read, write, diff, run, checkpoint, restore, commit, rollback, undo, cleanup, gc, admin]";

/// A configuration with a policy that is enforced. Its rules look like `deny [commit] agent* app:secret` (actions,
/// principal, scope), with `; ` between them.
pub(crate) fn enforce(prefix: &str, rules: &str) -> String {
    let rule = |rule: &str| {
        let (what, rest) = rule.split_once(' ').expect("what it does");
        let (actions, rest) = rest.split_once("] ").expect("actions");
        let (principal, scope) = rest.split_once(' ').expect("a principal");
        format!("    - {{{what}: {actions}], principal: '{principal}', scope: '{scope}'}}\n")
    };
    let rules: String = rules.split("; ").map(rule).collect();
    format!("{prefix}policy:\n  mode: enforce\n  rules:\n{rules}")
}

/// A line that runs a script.
pub(crate) fn inside(line: &str, script: &str) -> Vec<OsString> {
    [words(line), words("-- sh -c"), vec![script.into()]].concat()
}

/// The area of the first sandbox of a plan.
pub(crate) fn area(world: &World, cli: &Cli, plan: &str) -> PathBuf {
    let show = json(cli, &format!("plan show {plan}"));
    let id = show["sandboxes"][0]["sandbox_id"].as_str().expect("an id");
    world.home().join("sandboxes").join(id)
}
