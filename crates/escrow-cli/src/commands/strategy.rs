//! `escrow strategy`: lists strategies and runs the conformance suite against one.

use clap::{Args, Subcommand};
use escrow::error::{Error, Kind};
use escrow::model::resource::{FS_DIRECTORY, FS_FILE, GIT_CHECKOUT, SQLITE};
use escrow::strategy::conformance;
use escrow::strategy::registry::{AUTO, Registration};
use serde_json::{Value, json};

use crate::context::Context;
use crate::error::Failure;
use crate::ui::{Tone, Ui, paint};

/// List strategies and check that one keeps its contract
#[derive(Debug, Args)]
#[command(arg_required_else_help = true)]
pub(crate) struct StrategyArgs {
    #[command(subcommand)]
    verb: StrategyVerb,
}

#[derive(Debug, Subcommand)]
enum StrategyVerb {
    /// List the strategies and what they promise
    List,
    Check(StrategyCheckArgs),
}

/// Run the conformance suite against a strategy, on a throw-away directory
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  escrow strategy check overlay")]
struct StrategyCheckArgs {
    /// The strategy's name
    name: String,
}

impl StrategyArgs {
    pub(crate) fn run(self, context: &Context, ui: &Ui) -> Result<(), Failure> {
        match self.verb {
            StrategyVerb::List => list(context, ui),
            StrategyVerb::Check(args) => args.run(context, ui),
        }
    }
}

fn list(context: &Context, ui: &Ui) -> Result<(), Failure> {
    let all: Vec<_> = context.manager.registry().registrations().collect();
    if ui.is_json() {
        let strategies: Vec<Value> = all
            .iter()
            .map(|one| match one.ready() {
                Ok(strategy) => json!({
                    "name": one.name(),
                    "types": one.types(),
                    "program": one.is_program(),
                    "capabilities": strategy.capabilities(),
                }),
                // A program that cannot be used does not hide the others.
                Err(error) => json!({
                    "name": one.name(),
                    "types": one.types(),
                    "program": one.is_program(),
                    "capabilities": null,
                    "problem": error.to_string(),
                }),
            })
            .collect();
        ui.document(json!({"strategies": strategies}));
        return Ok(());
    }
    let word = |yes: bool| if yes { "yes" } else { "no" }.to_owned();
    let name = |value: Value| value.as_str().unwrap_or_default().to_owned();
    let mut problems = Vec::new();
    let rows = all.iter().map(|one| {
        let title = match one.types() {
            [] => one.name().to_owned(),
            types => format!("{} ({})", one.name(), types.join(", ")),
        };
        let promises = match one.ready() {
            Ok(strategy) => strategy.capabilities(),
            Err(error) => {
                problems.push(error.to_string());
                return [&title, "-", "-", "-", "-"].map(str::to_owned);
            }
        };
        [
            title,
            word(promises.isolates),
            name(json!(promises.base)),
            name(json!(promises.exposes)),
            promises.strength.to_string(),
        ]
    });
    let rows: Vec<_> = rows.collect();
    ui.table(["NAME", "ISOLATES", "BASE", "EXPOSES", "STRENGTH"], rows);
    for problem in problems {
        ui.warn(&problem);
    }
    ui.say("`escrow doctor` says which of them work here");
    Ok(())
}

/// Each promise, and how it was broken if it was.
fn named(report: conformance::ConformanceReport, of: &str) -> Vec<(String, Option<String>)> {
    let checks = report.checks.into_iter();
    let promise = checks.map(|check| (format!("{of}{}", check.name), check.problem));
    promise.collect()
}

/// What the conformance suite says about a strategy.
#[derive(Default)]
struct Checked {
    /// Each promise, and how it was broken if it was.
    checks: Vec<(String, Option<String>)>,
    /// The types for which it does not work here, so that it was not asked, and why.
    skipped: Vec<(Vec<String>, String)>,
}

/// What the conformance suite says about a strategy, on each kind of resource that it serves.
fn check(context: &Context, one: &Registration, all: &mut Checked) -> Result<(), Failure> {
    let (strategy, types) = (one.strategy(), &context.manager.settings().types);
    let takes = |kind: &str| {
        let mut allowed = types.named(kind).into_iter().flat_map(|kind| &kind.allowed);
        one.serves(kind) && allowed.any(|name| name == strategy.name())
    };
    let scratch = context.manager.scratch()?;
    let checks = &mut all.checks;
    if one.is_program() {
        let own = one.fixture(scratch.path());
        let directories = conformance::DirectoryFixture::new(scratch.path());
        let originals: &dyn conformance::Fixture = match &own {
            Some(own) => own,
            None => &directories,
        };
        checks.extend(named(conformance::run(&**strategy, originals), ""));
        checks.extend(named(
            conformance::run_killed(one, originals, &conformance::MOMENTS),
            "",
        ));
        return Ok(());
    }
    if one.types().is_empty() || takes(FS_DIRECTORY) {
        let directories = match !takes(FS_DIRECTORY) && takes(GIT_CHECKOUT) {
            true => conformance::DirectoryFixture::checkout(scratch.path()),
            false => conformance::DirectoryFixture::new(scratch.path()),
        };
        // Where others have its name too, they may work all the same.
        let probe = conformance::probe(&**strategy, &directories).map_err(Failure::failed)?;
        if !one.types().is_empty() && !probe.works {
            all.skipped.push((one.types().to_vec(), probe.reason));
            return Ok(());
        }
        checks.extend(named(conformance::run(&**strategy, &directories), ""));
    }
    if takes(FS_FILE) {
        let files = conformance::FileFixture::new(scratch.path());
        checks.extend(named(conformance::run(&**strategy, &files), "one file: "));
    }
    // What serves files too takes a database for one.
    if takes(SQLITE) && !one.serves(FS_FILE) {
        let journal = conformance::SqliteFixture::new(scratch.path());
        let log = conformance::SqliteFixture::with_log(scratch.path());
        let kinds = [
            ("SQLite: ", journal),
            ("SQLite with a write-ahead log: ", log),
        ];
        for (of, databases) in kinds {
            let databases = match strategy.capabilities().survives {
                true => databases,
                false => databases.locked(),
            };
            checks.extend(named(conformance::run(&**strategy, &databases), of));
        }
    }
    Ok(())
}

impl StrategyCheckArgs {
    fn run(self, context: &Context, ui: &Ui) -> Result<(), Failure> {
        if self.name == AUTO {
            return Err(
                Failure::usage("'auto' is a choice among strategies, not one itself")
                    .hint("`escrow strategy list` shows them"),
            );
        }
        let registry = context.manager.registry();
        registry.get(&self.name).map_err(Error::from)?;
        let mut meant: Vec<&Registration> = registry.registrations().collect();
        meant.retain(|one| one.name() == self.name);
        if meant.is_empty() {
            // A class of Python is not declared.
            meant.push(registry.named(&self.name).map_err(Error::from)?);
        }
        let mut all = Checked::default();
        for one in meant {
            check(context, one, &mut all)?;
        }
        let Checked { checks, skipped } = all;
        if let (true, Some((_, why))) = (checks.is_empty(), skipped.first()) {
            let said = format!("{} cannot be checked here: {why}", self.name);
            return Err(Failure::failed(said)
                .hint("check it in a state directory where it works (`--home`)"));
        }
        let failed = checks.iter().filter(|(_, why)| why.is_some()).count();
        if ui.is_json() {
            let check = |(name, why): &(String, Option<String>)| json!({"name": name, "passed": why.is_none(), "problem": why});
            let checks: Vec<Value> = checks.iter().map(check).collect();
            let skip =
                |(types, why): &(Vec<String>, String)| json!({"types": types, "reason": why});
            let skipped: Vec<Value> = skipped.iter().map(skip).collect();
            ui.document(json!({
                "strategy": self.name,
                "conforms": failed == 0,
                "checks": checks,
                "skipped": skipped,
            }));
        } else {
            for (name, problem) in &checks {
                ui.line(&match problem {
                    None => format!("{}  {name}", paint(Tone::Good, "ok    ")),
                    Some(why) => format!("{}  {name}: {why}", paint(Tone::Bad, "FAILED")),
                });
            }
            for (types, why) in &skipped {
                ui.say(&format!("not checked for {}: {why}", types.join(", ")));
            }
        }
        match failed {
            0 => {
                ui.say(&format!(
                    "{} conforms: {} checks passed",
                    self.name,
                    checks.len()
                ));
                Ok(())
            }
            _ if ui.is_json() => Err(Failure::reported(Kind::Failed)),
            _ => Err(Failure::failed(format!(
                "{} does not conform: {failed} of {} checks failed",
                self.name,
                checks.len()
            ))),
        }
    }
}
