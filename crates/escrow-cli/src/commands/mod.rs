//! The command line grammar. One command, one file; the doc comments are the help.

mod access;
mod agent;
mod agent_socket;
mod answer;
mod checkpoint;
mod cleanup;
mod commit;
mod completions;
mod diff;
mod doctor;
mod gc;
mod holder;
mod hook;
mod init;
mod inside;
mod log;
mod man;
mod mount;
mod open;
mod path;
mod plan;
mod read;
mod recover;
mod reference;
mod resource;
mod restore;
mod review;
mod rollback;
mod run;
mod run_ask;
mod run_plan;
mod sandbox;
mod shell;
pub(crate) mod show;
mod sql;
mod status;
mod strategy;
mod summary;
mod trust;
mod types;
mod undo;
mod uninstall;
mod write;

pub(crate) use completions::complete;

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::context::{self, Context};
use crate::error::Failure;
use crate::ui::{self, Ui};

/// Let an agent work on the real thing without touching it.
///
/// A plan gives each of its resources a sandbox. Read and write inside, look at one diff over
/// everything, and discard what you do not want: the originals stay as they are.
#[derive(Debug, Parser)]
#[command(
    name = "escrow",
    version,
    propagate_version = true,
    arg_required_else_help = true,
    max_term_width = 100,
    after_help = "Example:\n  escrow plan create try --resource ./app\n  \
        echo 'hello' | escrow write try app notes.txt\n  escrow diff try\n  escrow rollback try\n\n\
        Exit status:\n  0 done, 1 failed, 2 wrong usage, 3 denied, 4 conflict, 5 something was interrupted\n  \
        and must be finished or cleaned up first\n\n\
        Environment:\n  ESCROW_HOME              where state is kept\n  \
        ESCROW_CONFIG            the project's configuration, instead of an escrow.yaml here or above\n  \
        ESCROW_PRINCIPAL         who acts\n  \
        ESCROW_SANDBOX_STRATEGY  how sandboxes are made unless a command or a resource says otherwise\n  \
        NO_COLOR                 no colours, also on a terminal\n  \
        GIT_PAGER, PAGER         what shows a long `diff` or `log` on a terminal, as for git"
)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) global: GlobalArgs,
    #[command(subcommand)]
    command: Command,
}

/// What every command takes.
#[derive(Debug, Default, Args)]
#[command(next_help_heading = "Global options")]
pub(crate) struct GlobalArgs {
    /// Give one JSON document on stdout, errors too
    #[arg(long, global = true)]
    pub(crate) json: bool,
    /// Act as this principal instead of ESCROW_PRINCIPAL or user:NAME
    #[arg(long, global = true, value_name = "WHO")]
    pub(crate) principal: Option<String>,
    /// Keep state here instead of in ESCROW_HOME or $XDG_DATA_HOME/escrow
    #[arg(long, global = true, value_name = "DIR")]
    pub(crate) home: Option<PathBuf>,
    /// Take the project's configuration from here instead of ESCROW_CONFIG, or an escrow.yaml in this
    /// directory or above
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Say more
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    pub(crate) verbose: u8,
    /// Say nothing but errors and warnings
    #[arg(short, long, global = true)]
    pub(crate) quiet: bool,
    /// Do not ask
    #[arg(short, long, global = true)]
    pub(crate) yes: bool,
    /// Whether to use colours; `auto` does on a terminal
    #[arg(long, global = true, value_enum, value_name = "WHEN", default_value_t)]
    pub(crate) color: ColorArg,
}

#[derive(Debug, Clone, Copy, Default, ValueEnum)]
pub(crate) enum ColorArg {
    #[default]
    Auto,
    Always,
    Never,
}

#[derive(Debug, Subcommand)]
enum Command {
    Run(run::RunArgs),
    Shell(shell::ShellArgs),
    Hook(hook::HookArgs),
    Plan(plan::PlanArgs),
    Sandbox(sandbox::SandboxArgs),
    Path(path::PathArgs),
    Open(open::OpenArgs),
    Mount(mount::MountArgs),
    Read(read::ReadArgs),
    Write(write::WriteArgs),
    Sql(sql::SqlArgs),
    Diff(diff::DiffArgs),
    Checkpoint(checkpoint::CheckpointArgs),
    Restore(restore::RestoreArgs),
    Review(review::ReviewArgs),
    Commit(commit::CommitArgs),
    Rollback(rollback::RollbackArgs),
    Undo(undo::UndoArgs),
    Recover(recover::RecoverArgs),
    Cleanup(cleanup::CleanupArgs),
    Gc(gc::GcArgs),
    Status(status::StatusArgs),
    Log(log::LogArgs),
    Access(access::AccessArgs),
    Agent(agent::AgentArgs),
    Doctor(doctor::DoctorArgs),
    Strategy(strategy::StrategyArgs),
    Resource(resource::ResourceArgs),
    Type(types::TypeArgs),
    Init(init::InitArgs),
    Uninstall(uninstall::UninstallArgs),
    Trust(trust::TrustArgs),
    Completions(completions::CompletionsArgs),
    Man(man::ManArgs),
    Reference(reference::ReferenceArgs),
    #[command(hide = true)]
    Holder(holder::HolderArgs),
    #[command(hide = true)]
    Inside(inside::InsideArgs),
    #[command(hide = true)]
    Answer(answer::AnswerArgs),
}

impl GlobalArgs {
    /// How it is answered.
    pub(crate) fn ui(&self) -> Ui {
        ui::choose_colours(match self.color {
            ColorArg::Auto => None,
            ColorArg::Always => Some(true),
            ColorArg::Never => Some(false),
        });
        Ui::new(self.json, self.quiet, self.verbose).yes(self.yes)
    }
}

/// Answers a question from inside a run, if that is what this program was started for.
pub(crate) fn answer(cli: &Cli) -> Option<std::process::ExitCode> {
    match &cli.command {
        Command::Answer(args) => Some(args.run(&cli.global)),
        _ => None,
    }
}

/// Does what was typed.
pub(crate) fn run(cli: Cli, ui: &Ui) -> Result<(), Failure> {
    let global = &cli.global;
    // Help and completions touch no state.
    let command = match cli.command {
        Command::Completions(args) => return args.run(ui),
        Command::Man(args) => return args.run(ui),
        Command::Reference(args) => return args.run(ui),
        Command::Inside(args) => return args.run(),
        Command::Holder(args) => return args.run(),
        Command::Hook(args) => return args.run(global, ui),
        command => command,
    };
    if let Some(socket) = context::socket() {
        return agent_socket::ask(&socket, ui);
    }
    // What is about a configuration must not stumble over the one that is here.
    match &command {
        Command::Init(args) => return args.run(ui),
        Command::Agent(args) => {
            if let Some(done) = args.without_state(ui) {
                return done;
            }
        }
        Command::Type(args) => {
            if let Some(done) = args.validate(ui) {
                return done;
            }
        }
        _ => {}
    }
    let directory = match &command {
        Command::Run(args) => args.options.directory.as_deref(),
        Command::Shell(args) => args.options.directory.as_deref(),
        _ => None,
    };
    directory.map_or(Ok(()), context::go_to)?;
    let runs = matches!(
        command,
        Command::Run(_) | Command::Shell(_) | Command::Open(_) | Command::Mount(_)
    );
    // What frees space or repairs goes on without a configuration that makes no sense.
    let lenient = matches!(
        command,
        Command::Undo(_)
            | Command::Recover(_)
            | Command::Gc(_)
            | Command::Cleanup(_)
            | Command::Rollback(_)
            | Command::Uninstall(_)
    );
    let context = Context::open(global, lenient).map_err(|failure| match &command {
        Command::Gc(args) => args.without_state(failure),
        _ => failure,
    });
    if let Command::Uninstall(args) = &command {
        return args.run(context?, ui);
    }
    let done = context.and_then(|context| with_notices(command, &context, ui));
    match runs {
        // Its own failures must not look like those of the command.
        true => done.map_err(|failure| failure.or_status(125)),
        false => done,
    }
}

fn with_notices(command: Command, context: &Context, ui: &Ui) -> Result<(), Failure> {
    if let Some(file) = &context.manager.settings().file {
        ui.verbose(&format!("configuration: {file}"));
    }
    context.tell_notices(ui);
    // What they are asked for is what they print.
    let prints = matches!(command, Command::Path(_) | Command::Sql(_));
    let done = with_state(command, context, ui);
    context.tell_notices(ui);
    if context.manager.has_changed() && !prints {
        ui.done.set(true);
    }
    done
}

fn with_state(command: Command, context: &Context, ui: &Ui) -> Result<(), Failure> {
    match command {
        Command::Run(args) => args.run(context, ui),
        Command::Shell(args) => args.run(context, ui),
        Command::Plan(args) => args.run(context, ui),
        Command::Sandbox(args) => args.run(context, ui),
        Command::Path(args) => args.run(context, ui),
        Command::Open(args) => args.run(context, ui),
        Command::Mount(args) => args.run(context, ui),
        Command::Read(args) => args.run(context, ui),
        Command::Write(args) => args.run(context, ui),
        Command::Sql(args) => args.run(context, ui),
        Command::Diff(args) => args.run(context, ui),
        Command::Checkpoint(args) => args.run(context, ui),
        Command::Restore(args) => args.run(context, ui),
        Command::Review(args) => args.run(context, ui),
        Command::Commit(args) => args.run(context, ui),
        Command::Rollback(args) => args.run(context, ui),
        Command::Undo(args) => args.run(context, ui),
        Command::Recover(args) => args.run(context, ui),
        Command::Cleanup(args) => args.run(context, ui),
        Command::Gc(args) => args.run(context, ui),
        Command::Status(args) => args.run(context, ui),
        Command::Log(args) => args.run(context, ui),
        Command::Access(args) => args.run(context, ui),
        Command::Agent(args) => args.run(context, ui),
        Command::Doctor(args) => args.run(context, ui),
        Command::Strategy(args) => args.run(context, ui),
        Command::Resource(args) => args.run(context, ui),
        Command::Type(args) => args.run(context, ui),
        Command::Trust(args) => args.run(context, ui),
        Command::Init(_)
        | Command::Hook(_)
        | Command::Uninstall(_)
        | Command::Completions(_)
        | Command::Man(_)
        | Command::Reference(_)
        | Command::Inside(_)
        | Command::Holder(_)
        | Command::Answer(_) => Ok(()),
    }
}
