//! Tool calls: each becomes a command in the plan, a call with the path of a sandbox, or a denial.

use std::path::{Path, PathBuf};

use escrow::model::text::escape;
use serde_json::{Map, Value, json};

use super::paths::Place;
use super::session::Session;
use super::{Call, Client};
use crate::context;
use crate::error::Failure;

/// Tools that touch no file and run no command of this machine, or that control what was sandboxed when it began. Their hooks, or
/// those of the agents that they start, are asked by themselves.
const PASSED: [&str; 24] = [
    "Agent",
    "AskUserQuestion",
    "BashOutput",
    "CronCreate",
    "CronDelete",
    "CronList",
    "EnterPlanMode",
    "EnterWorktree",
    "ExitPlanMode",
    "ExitWorktree",
    "KillBash",
    "KillShell",
    "ListAgents",
    "SendMessage",
    "Skill",
    "Task",
    "TaskOutput",
    "TaskStop",
    "TodoWrite",
    "ToolSearch",
    "WebFetch",
    "WebSearch",
    "Workflow",
    "update_plan",
];

/// The fields by which tools name one file or directory.
const PATHS: [&str; 3] = ["file_path", "notebook_path", "path"];

/// The answer to a call.
pub(super) enum Verdict {
    /// No decision: the client's own permissions count.
    Pass,
    /// Permitted, with these fields changed.
    Change(Map<String, Value>),
    /// Denied for this reason.
    Deny(String),
}

/// Returns whether a tool is passed without a plan. Tools of MCP servers act where their server is.
pub(super) fn needs_no_sandbox(tool: &str) -> bool {
    tool.starts_with("mcp__") || PASSED.contains(&tool)
}

/// Decides about a tool call.
pub(super) fn decide(call: &Call<'_>, session: &Session) -> Result<Verdict, Failure> {
    let paths = Paths { call, session };
    let input = call.input.tool_input();
    let named = PATHS.into_iter().any(|field| input.contains_key(field));
    match (call.input.tool()?, named) {
        ("Bash" | "Monitor", _) => command(call, session),
        ("apply_patch", _) => paths.patch(),
        ("Glob", _) => paths.glob(),
        ("Grep" | "LS", _) => paths.field("path", Use::Read, true),
        ("Read" | "NotebookRead" | "view_image", true) => paths.all(Use::Read),
        (tool, _) if input.contains_key("command") || input.contains_key("cmd") => {
            Ok(Verdict::Deny(format!(
                "'{tool}' runs a command that cannot be sandboxed; use Bash"
            )))
        }
        (_, true) => paths.all(Use::Write),
        (_, false) => Ok(Verdict::Pass),
    }
}

fn change(field: &str, value: impl Into<Value>) -> Verdict {
    Verdict::Change(Map::from_iter([(field.to_owned(), value.into())]))
}

/// A command, run in the session's plan.
fn command(call: &Call<'_>, session: &Session) -> Result<Verdict, Failure> {
    let line = runner(call, session)?;
    let inside = |text: &str| {
        // File tools print paths of the sandbox, and those are hidden inside.
        let roots = session.roots.iter();
        let shown = roots.filter_map(|root| Some((root.sandbox.as_ref()?.to_str()?, root)));
        shown.fold(text.to_owned(), |text, (sandbox, root)| {
            match root.original.to_str() {
                Some(original) => text.replace(sandbox, original),
                None => text,
            }
        })
    };
    match call.input.tool_input().get("command") {
        Some(Value::String(script)) if !script.contains('\0') => {
            let mut words = line;
            // A single word, so that a script may begin with a dash. `-- bash -c` would hide from the client what is run: in
            // worktrees it refuses such a line if the text names git.
            words.push(format!("--script={}", inside(script)));
            let words: Vec<String> = words.iter().map(|word| quoted(word)).collect();
            Ok(change("command", words.join(" ")))
        }
        Some(Value::Array(words)) => {
            let words: Option<Vec<&str>> = words.iter().map(Value::as_str).collect();
            let words = words.filter(|words| !words.is_empty());
            let Some(words) = words else {
                return Ok(Verdict::Deny("the command is no list of words".to_owned()));
            };
            let inside = words.into_iter().map(inside);
            Ok(change(
                "command",
                json!(
                    line.into_iter()
                        .chain(["--".to_owned()])
                        .chain(inside)
                        .collect::<Vec<_>>()
                ),
            ))
        }
        _ => Ok(Verdict::Deny("the call has no command".to_owned())),
    }
}

/// The words that run what follows them in the plan, with the options that this program was called with.
fn runner(call: &Call<'_>, session: &Session) -> Result<Vec<String>, Failure> {
    let text = |path: PathBuf| {
        let shown = escape(path.as_os_str().as_encoded_bytes()).to_string();
        let unusable = || Failure::failed(format!("'{shown}' is no UTF-8"));
        path.into_os_string().into_string().map_err(|_| unusable())
    };
    let mut line = vec![text(context::program().as_path().to_owned())?];
    let global = call.global;
    for (option, path) in [("--home", &global.home), ("--config", &global.config)] {
        if let Some(path) = path {
            line.extend([
                option.to_owned(),
                text(std::path::absolute(path).unwrap_or_else(|_| path.clone()))?,
            ]);
        }
    }
    if let Some(principal) = &global.principal {
        line.extend(["--principal".to_owned(), principal.clone()]);
    }
    line.extend(["run", "-q", "--plan", &session.plan.name].map(str::to_owned));
    let cwd = call.input.cwd()?;
    let inside = session.roots.inside(&cwd);
    // Codex begins a command in a directory that the event does not name; it is known inside unless it is the sandbox's own.
    if call.client == Client::Claude || inside != cwd {
        line.extend(["-C".to_owned(), text(inside)?]);
    }
    Ok(line)
}

/// A word as the shell reads it back.
fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/._-".contains(c);
    match !word.is_empty() && word.chars().all(is_plain) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', "'\\''")),
    }
}

/// The use that a tool makes of a path.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Use {
    Read,
    Write,
}

/// Translates the paths of a call.
struct Paths<'a> {
    call: &'a Call<'a>,
    session: &'a Session,
}

impl Paths<'_> {
    /// All fields that name a path.
    fn all(&self, how: Use) -> Result<Verdict, Failure> {
        let mut changed = Map::new();
        for field in PATHS {
            if !self.call.input.tool_input().contains_key(field) {
                continue;
            }
            match self.field(field, how, false)? {
                Verdict::Change(one) => changed.extend(one),
                Verdict::Pass => {}
                denied @ Verdict::Deny(_) => return Ok(denied),
            }
        }
        Ok(match changed.is_empty() {
            true => Verdict::Pass,
            false => Verdict::Change(changed),
        })
    }

    /// A field that names one path; where it may be left out, the working directory is meant.
    fn field(&self, field: &str, how: Use, optional: bool) -> Result<Verdict, Failure> {
        let path = match self.call.input.tool_input().get(field) {
            Some(Value::String(path)) => path.as_str(),
            None | Some(Value::Null) if optional => "",
            _ => return Ok(Verdict::Deny(format!("'{field}' is no text"))),
        };
        Ok(match self.translate(path, how)? {
            Ok(Some(path)) => change(field, path),
            Ok(None) => Verdict::Pass,
            Err(why) => Verdict::Deny(why),
        })
    }

    /// The path of the sandbox; `None` of one that is read in no resource; or why it is denied.
    fn translate(&self, path: &str, how: Use) -> Result<Result<Option<String>, String>, Failure> {
        let full = match path.strip_prefix("~/") {
            Some(rest) => context::user_home().unwrap_or_default().join(rest),
            None => self.call.input.cwd()?.join(path),
        };
        let (resource, inner, on_disk) = match self.session.roots.resolve(&full) {
            Place::Inside(resource, inner, on_disk) => (resource, inner, on_disk),
            Place::Outside(_) if how == Use::Read => return Ok(Ok(None)),
            Place::Outside(at) => return Ok(Err(self.outside(&at))),
            Place::Refused(why) => return Ok(Err(why)),
        };
        let (action, scope) = match how {
            Use::Read => ("read", format!("{resource}:{}", inner.display())),
            Use::Write => ("write", format!("{resource}:{}", inner.display())),
        };
        // The client acts for the agent, so the agent's rules count.
        let scope = match inner.as_os_str().is_empty() {
            true => resource.to_owned(),
            false => scope,
        };
        let decision = self
            .call
            .context
            .manager
            .check_access("agent", action, &scope)?;
        if !decision.permitted {
            return Ok(Err(format!(
                "{action} of {scope} is denied: {}",
                decision.reason
            )));
        }
        Ok(match on_disk.into_os_string().into_string() {
            Ok(path) => Ok(Some(path)),
            Err(_) => Err(format!("'{path}' is no UTF-8")),
        })
    }

    fn outside(&self, at: &Path) -> String {
        let names: Vec<&str> = self
            .session
            .roots
            .iter()
            .map(|root| root.name.as_str())
            .collect();
        let (plan, at) = (&self.session.plan.name, at.display());
        format!(
            "'{at}' lies in no resource of the plan {plan} ({}); the user can add one: `escrow sandbox create {plan} DIRECTORY --strategy copy_on_write`",
            names.join(", ")
        )
    }

    /// A pattern, which may be an absolute path itself; else the directory in which it counts.
    fn glob(&self) -> Result<Verdict, Failure> {
        let pattern = self
            .call
            .input
            .tool_input()
            .get("pattern")
            .and_then(Value::as_str);
        let Some(pattern) = pattern.filter(|pattern| pattern.starts_with('/')) else {
            return self.field("path", Use::Read, true);
        };
        let wild = pattern.find(['*', '?', '[', '{']).unwrap_or(pattern.len());
        let cut = pattern[..wild].rfind('/').unwrap_or(0);
        Ok(match self.translate(&pattern[..cut.max(1)], Use::Read)? {
            Ok(Some(start)) => change("pattern", format!("{start}{}", &pattern[cut..])),
            Ok(None) => Verdict::Pass,
            Err(why) => Verdict::Deny(why),
        })
    }

    /// A patch of Codex, whose headers name the files. A line that is like a header and none that is known is denied.
    fn patch(&self) -> Result<Verdict, Failure> {
        const HEADERS: [&str; 4] = [
            "*** Add File: ",
            "*** Update File: ",
            "*** Delete File: ",
            "*** Move to: ",
        ];
        const MARKS: [&str; 3] = ["*** Begin Patch", "*** End Patch", "*** End of File"];
        let input = self.call.input.tool_input();
        let field = ["command", "patch", "input"]
            .into_iter()
            .find(|field| input.contains_key(*field));
        let Some((field, Value::String(text))) = field.map(|field| (field, &input[field])) else {
            return Ok(Verdict::Deny("the patch is no text; use Bash".to_owned()));
        };
        let mut lines = Vec::new();
        for line in text.split('\n') {
            let header = HEADERS
                .into_iter()
                .find_map(|head| Some((head, line.strip_prefix(head)?)));
            if let Some((head, path)) = header {
                match self.translate(path.trim(), Use::Write)? {
                    Ok(Some(path)) => lines.push(format!("{head}{path}")),
                    Ok(None) => return Ok(Verdict::Deny(format!("'{path}' cannot be sandboxed"))),
                    Err(why) => return Ok(Verdict::Deny(why)),
                }
            } else if line.trim_start().starts_with("*** ") && !MARKS.contains(&line.trim_end()) {
                return Ok(Verdict::Deny(format!(
                    "the patch has an unknown line '{line}'"
                )));
            } else {
                lines.push(line.to_owned());
            }
        }
        Ok(change(field, lines.join("\n")))
    }
}
