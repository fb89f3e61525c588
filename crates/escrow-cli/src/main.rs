//! The program `escrow`: parses the command line, calls the engine, prints through `ui`.
//!
//! One verb is one file in `commands/`; its doc comment is its help. `ui` is the only printer,
//! `error` the only place of exit codes, `context` the only reader of the environment.

mod amount;
mod commands;
mod context;
mod error;
mod shown;
mod ui;

use std::process::ExitCode;

use clap::Parser;

use commands::Cli;

fn main() -> ExitCode {
    context::open_many();
    context::tell_bus_errors();
    let typed = context::arguments();
    if commands::complete(&typed) {
        return ExitCode::SUCCESS;
    }
    let cli = match Cli::try_parse_from(&typed) {
        Ok(cli) => cli,
        Err(refused) => return error::usage(&refused, context::wants_json(&typed)),
    };
    if let Some(code) = commands::answer(&cli) {
        return code;
    }
    let ui = cli.global.ui();
    error::conclude(commands::run(cli, &ui), &ui)
}
