//! A PostgreSQL database: `pgbench` in the held transaction of a sandbox, beside on the server itself.

use std::time::Duration;

use escrow_testkit::World;
use escrow_testkit::postgres::{Postgres, program};

use crate::bench::{Bench, command, time};
use crate::measure::{Arm, in_turns};
use crate::report::{Row, Section};

/// How many each run makes.
const TRANSACTIONS: &str = "10000";

/// At most so much longer: 80 % of what the server does by itself.
const GOAL: f64 = 1.25;

fn pgbench(args: &[&str], url: &str) -> Duration {
    let name = program("pgbench").display().to_string();
    time(command(&name, args, &[]).arg(url), &[0])
}

pub(crate) fn figures(bench: &Bench) -> Section {
    let server = Postgres::start(true);
    server.sql("postgres", "CREATE DATABASE beside");
    let (original, beside) = (
        server.url("postgres", "shop"),
        server.url("postgres", "beside"),
    );
    for url in [&original, &beside] {
        pgbench(&["-i", "-q", "-s", "5"], url);
    }
    // Paths of sockets are short.
    let world = World::on_disk();
    let cli = bench.escrow("postgres").cli;
    let cli = cli.env("ESCROW_HOME", world.dir("h"));
    cli.ok(["plan", "create", "p", "--resource", original.as_str()]);
    let held = cli.ok(["path", "p", "shop"]).trim_end().to_owned();
    let mut rows = Vec::new();
    for (what, script) in [("reads", "-S"), ("writes", "-N")] {
        for mode in ["simple", "prepared"] {
            let args = ["-n", script, "-c", "1", "-M", mode, "-t", TRANSACTIONS];
            let name = format!("`pgbench {script} -M {mode}`");
            let (ours, direct) = (
                format!("{name} in the sandbox"),
                format!("{name} on the server"),
            );
            let arms = vec![
                Arm::new(&ours, |_| {
                    cli.ok(["rollback", "p"]);
                    pgbench(&args, &held)
                }),
                Arm::new(&direct, |_| pgbench(&args, &beside)),
            ];
            let times = in_turns(bench.rounds(true), arms);
            rows.push(Row::times(what, &times[0], &times[1], Some(GOAL)));
        }
    }
    cli.ok(["cleanup", "--yes", "p"]);
    Section {
        title: "A PostgreSQL database",
        note: format!(
            "{TRANSACTIONS} transactions of one client of `pgbench`, scale 5, over Unix sockets, with `fsync` off on both sides. In the sandbox all of \
             them are savepoints of one transaction; each statement passes through the holder, a process of its own.\n"
        ),
        rows,
    }
}
