//! `escrow log`: lists what was done or denied, and verifies that the log is unchanged.

use std::collections::VecDeque;

use clap::Args;
use escrow::error::{Error, Kind};
use escrow::model::text::one_line;
use escrow::{LoggedOperation, Plan};
use serde_json::{Value, json};

use super::show;
use crate::context::Context;
use crate::error::Failure;
use crate::ui::{Tone, Ui, count, paint};

/// Show what was done or denied, by whom, on what, and how it ended
///
/// Oldest first. What was said about a commit is shown with it. Operations are
/// entered when they begin and when they end, each entry with a hash over it and the one before;
/// `--verify` finds an entry that was changed, removed or put in afterwards, and prints how many there are and the last hash;
/// kept elsewhere, these show with `--expect` later that the end was not cut off.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  escrow log\n  escrow log try\n  escrow log --verify\n  escrow log --verify --expect 12:9f86…"
)]
pub(crate) struct LogArgs {
    /// Name, id or prefix of a plan; everything if left out
    plan: Option<String>,
    /// Only the last ones, this many
    #[arg(short = 'n', long, value_name = "NUMBER")]
    last: Option<usize>,
    /// Check that the whole log is as it was written, instead of showing it
    #[arg(long)]
    verify: bool,
    /// Check too that this entry still has the hash that an earlier `--verify` printed
    #[arg(long, value_name = "NUMBER:HASH", requires = "verify", value_parser = expected)]
    expect: Option<(u64, String)>,
}

fn expected(typed: &str) -> Result<(u64, String), String> {
    let parts = typed.split_once(':');
    let parts = parts.and_then(|(entry, hash)| Some((entry.parse().ok()?, hash.to_owned())));
    let is_hash =
        |hash: &str| hash.len() == 64 && hash.bytes().all(|byte| byte.is_ascii_hexdigit());
    parts
        .filter(|(_, hash)| is_hash(hash))
        .ok_or_else(|| "a number, a colon and 64 hexadecimal digits are expected".to_owned())
}

impl LogArgs {
    pub(crate) fn run(self, context: &Context, ui: &Ui) -> Result<(), Failure> {
        let plan = match &self.plan {
            Some(typed) => Some(context.plan(Some(typed), ui)?),
            None => None,
        };
        if self.verify {
            return verify(context, self.expect.as_ref(), ui);
        }
        if ui.is_json() {
            return self.stream(context, plan.as_ref(), ui);
        }
        ui.page();
        let mut none = true;
        self.each(context, plan.as_ref(), |one| {
            none = false;
            show_report(&one, ui);
            Ok(())
        })?;
        if none {
            ui.say("the log is empty");
        }
        Ok(())
    }

    /// Every operation that is wanted, oldest first.
    fn each(
        &self,
        context: &Context,
        plan: Option<&Plan>,
        mut each: impl FnMut(LoggedOperation) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let Some(most) = self.last else {
            return context.manager.each_logged(plan, each);
        };
        let mut last = VecDeque::new();
        context.manager.each_logged(plan, |one| {
            last.push_back(one);
            if last.len() > most {
                last.pop_front();
            }
            Ok(())
        })?;
        last.into_iter().try_for_each(&mut each)
    }

    /// One document, written as it is read.
    fn stream(&self, context: &Context, plan: Option<&Plan>, ui: &Ui) -> Result<(), Failure> {
        let mut out = ui.content();
        let mut before = "{\n  \"operations\": [\n    ";
        self.each(context, plan, |one| {
            write!(out, "{before}{}", entry(&one)).map_err(Error::Output)?;
            before = ",\n    ";
            Ok(())
        })?;
        let end = match before.starts_with('{') {
            true => "{\n  \"operations\": []\n}\n",
            false => "\n  ]\n}\n",
        };
        write!(out, "{end}")
            .and_then(|()| out.flush())
            .map_err(Error::Output)?;
        Ok(())
    }
}

fn show_report(one: &LoggedOperation, ui: &Ui) {
    let operation = &one.operation;
    let tone = match one.outcome.as_str() {
        "done" => Tone::Good,
        "failed" | "denied" => Tone::Bad,
        _ => Tone::Careful,
    };
    let took = one.took().map(|took| format!("  {}", duration(took)));
    let resources = match operation.resources.as_slice() {
        [] => String::new(),
        // It is named already.
        [only] if operation.target.starts_with(only.as_str()) => String::new(),
        several => format!("  on {}", several.join(", ")),
    };
    ui.line(&format!(
        "{}  {}  {} {}{resources}  {}{}",
        show::timestamp(operation.started_at),
        paint(tone, &format!("{:<11}", one.outcome)),
        operation.action,
        one_line(&operation.target),
        paint(Tone::Faint, &one_line(&operation.principal)),
        paint(Tone::Faint, &took.unwrap_or_default()),
    ));
    if let Some(message) = &operation.message {
        ui.line(&format!("    {}", one_line(message)));
    }
    if one.path_count > 0 && operation.action != "write" {
        ui.line(&format!("    {}", count(one.path_count, "path", "paths")));
    }
    for why in one.error.iter().chain(&one.reason) {
        ui.line(&format!("    {}", paint(Tone::Bad, &one_line(why))));
    }
}

/// How long it took, for people.
fn duration(took: std::time::Duration) -> String {
    match took.as_secs() {
        0 => format!("{} ms", took.as_millis()),
        1..60 => format!("{:.1} s", took.as_secs_f64()),
        secs => format!("{} min {} s", secs / 60, secs % 60),
    }
}

fn entry(one: &LoggedOperation) -> Value {
    let operation = &one.operation;
    json!({
        "id": operation.id,
        "principal": operation.principal,
        "action": operation.action,
        "plan_id": operation.plan_id,
        "target": operation.target,
        "resources": operation.resources,
        "paths": one.paths,
        "path_count": one.path_count,
        "message": operation.message,
        "outcome": one.outcome,
        "error": one.error,
        "reason": one.reason,
        "started_at": operation.started_at.to_string(),
        "finished_at": one.finished_at.map(|at| at.to_string()),
        "duration_ms": one.took().map(|took| took.as_millis() as u64),
    })
}

fn verify(context: &Context, expected: Option<&(u64, String)>, ui: &Ui) -> Result<(), Failure> {
    let check = context.manager.check_log(expected)?;
    let entries = count(check.entries, "entry", "entries");
    if ui.is_json() {
        let fault = check.fault.as_ref().map(|fault| {
            json!({"entry": fault.entry, "operation_id": fault.operation, "what": fault.what})
        });
        ui.document(json!({
            "valid": fault.is_none(),
            "entries": check.entries,
            "head": check.head,
            "fault": fault,
        }));
        return match check.fault {
            Some(_) => Err(Failure::reported(Kind::Failed)),
            None => Ok(()),
        };
    }
    let Some(fault) = check.fault else {
        ui.line(&format!(
            "the log is intact: {entries}, the last hash is {}",
            check.head
        ));
        return Ok(());
    };
    let operation = fault.operation.map(|id| format!(" ({id})"));
    Err(Failure::failed(format!(
        "the log was changed: entry {}{}: {}",
        fault.entry,
        operation.unwrap_or_default(),
        fault.what
    ))
    .hint(format!("before it, {entries} are intact")))
}
