//! A plan of a directory and of a clone of a PostgreSQL database, killed at any call of each verb: afterwards both are old or both are
//! new, asked with `cat` and `psql`, and no clone, no prepared transaction and no area stays.

use std::panic::{AssertUnwindSafe, catch_unwind};

use escrow_testkit::postgres::{Postgres, program};
use escrow_testkit::stepper::Step;

use crate::sweep::{each_here, spread, thin};
use crate::*;

/// What is killed.
const VERBS: [&str; 8] = [
    "plan create t -r files -r shop",
    "checkpoint create t -m two",
    "plan fork t u",
    "restore t one",
    "commit t --yes",
    "undo t",
    "rollback t --yes",
    "cleanup t --yes",
];

struct Cloned {
    server: Postgres,
    world: World,
    cli: Cli,
}

impl Cloned {
    fn new() -> Self {
        let server = Postgres::start(true);
        let fill =
            "CREATE TABLE t (id int PRIMARY KEY, n int); INSERT INTO t VALUES (1, 0), (2, 0)";
        server.sql("shop", fill);
        let world = World::new();
        world.dir("files");
        sh(world.path(), "echo 0 > files/n");
        let url = server.url("postgres", "shop");
        let text = format!(
            "resources: {{files: {{at: files}}, shop: {{type: postgres, at: '{url}', strategy: snapshot}}}}\n"
        );
        std::fs::write(world.at("escrow.yaml"), text).expect("it is ours");
        let cli = Cli::new(&world, &binary()).cwd(world.path());
        cli.ok("trust escrow.yaml --yes");
        Self { server, world, cli }
    }

    /// Puts a number into the sandboxes, with rows that come and go, and, where nothing is undone, a table of its name.
    fn work(&self, number: u64, verb: &str) {
        let define = match verb.starts_with("undo") {
            true => String::new(),
            false => format!("CREATE TABLE IF NOT EXISTS m{number} (n int)"),
        };
        let sql = format!(
            "UPDATE t SET n = {number} WHERE id = 1; DELETE FROM t WHERE id > 1; INSERT INTO t VALUES ({number} + 2, {number}); {define}"
        );
        let work = format!(
            "set -e; echo {number} > '{}'; '{}' -v ON_ERROR_STOP=1 -Xqc '{sql}'",
            self.world.at("files/n").display(),
            program("psql").display()
        );
        self.cli.ok(["run", "--plan", "t", "--", "sh", "-c", &work]);
    }

    /// Everything that goes before a verb.
    fn prepare(&self, verb: &str, number: u64) {
        if verb == VERBS[0] {
            return;
        }
        self.cli.ok(VERBS[0]);
        self.work(number, verb);
        if verb.starts_with("restore") {
            self.cli.ok("checkpoint create t -m one");
            self.work(number + 1, verb);
        }
        if verb.starts_with("undo") {
            self.cli.ok("commit t --yes");
        }
    }

    /// Which number both hold.
    fn number(&self) -> Result<u64, String> {
        let file = sh(self.world.path(), "cat files/n").trim().to_owned();
        let rows = self.server.sql("shop", "SELECT * FROM t ORDER BY id");
        let number: u64 = file.parse().map_err(|_| file.clone())?;
        let wanted = format!("1|{number}\n{}|{number}", number + 2);
        let prepared = self.server.prepared();
        match rows == wanted && prepared.is_empty() {
            true => Ok(number),
            false => Err(format!("{file}, rows: {rows:?}, prepared: {prepared:?}")),
        }
    }

    /// What is there once all plans are gone.
    fn left(&self) -> Result<(), String> {
        for plan in ["t", "u"] {
            // One that was never made cannot be removed.
            self.cli.run(["cleanup", plan, "--yes"]);
        }
        self.cli.ok("gc");
        let clones = "SELECT datname FROM pg_database WHERE datname LIKE 'escrow%'";
        let (clones, areas) = (self.server.sql("postgres", clones), self.world.areas());
        match clones.is_empty() && areas.is_empty() {
            true => Ok(()),
            false => Err(format!("left: {clones} {areas:?}")),
        }
    }

    /// Kills a verb at a call, and goes on as a person would.
    fn life(&self, verb: &str, n: u64, number: &mut u64) -> (Result<(), String>, Option<Step>) {
        let (old, new) = (*number, *number + 1);
        *number += 2;
        self.prepare(verb, new);
        let run = self.cli.stepper(verb).fault(n, Fault::Kill);
        let after = || {
            self.cli.ok("recover");
            let now = self.number()?;
            let fits = match verb.split(' ').next() {
                Some("commit" | "undo") => [old, new].contains(&now),
                _ => now == old,
            };
            if !fits {
                return Err(format!("both hold {now}"));
            }
            // What was not committed is still there, and can be.
            if (verb.starts_with("commit") && now == old)
                || verb.starts_with("checkpoint")
                || verb.starts_with("plan fork")
            {
                self.cli.ok("commit t --yes");
                let now = self.number()?;
                if now != new {
                    return Err(format!("both hold {now} instead of {new}"));
                }
            }
            if verb.starts_with("restore") {
                self.cli.ok("commit t --yes");
                let now = self.number()?;
                if ![new, new + 1].contains(&now) {
                    return Err(format!(
                        "both hold {now} instead of {new}, or what came after it"
                    ));
                }
            }
            if verb.starts_with("undo") && now == new {
                self.cli.ok(verb);
                if self.number()? != old {
                    return Err("the undo was not finished".to_owned());
                }
            }
            self.left()
        };
        let done = after();
        *number = self.number().unwrap_or(*number);
        (done, run.hit)
    }
}

/// Every verb, killed at its calls.
pub(crate) fn kills(form: Form) -> Figures {
    let cloned = Cloned::new();
    let mut figures = Figures::default();
    let mut chosen = Vec::new();
    let mut number = 0;
    let verbs = match form {
        Form::Bounded => [0, 4].map(|verb| VERBS[verb]).to_vec(),
        Form::Long(_) => VERBS.to_vec(),
    };
    for verb in verbs {
        cloned.prepare(verb, number + 1);
        let all = sweep::calls(cloned.cli.stepper(verb), verb);
        figures.wrong.extend(cloned.left().err());
        number = cloned.number().unwrap_or(number + 1);
        let all: Vec<(&str, u64)> = (1..=all).map(|n| (verb, n)).collect();
        chosen.extend(match form {
            Form::Bounded => thin(&all, 3)[1..2].to_vec(),
            Form::Long(_) => all,
        });
    }
    if form.is_long() {
        chosen = spread(chosen);
    }
    let found = each_here(&chosen, form.until(), |&(verb, n)| {
        let mut verdict = Verdict::default();
        let done = catch_unwind(AssertUnwindSafe(|| cloned.life(verb, n, &mut number)));
        let wrong = match done {
            Ok((answer, hit)) => {
                verdict.hit = hit;
                answer.err()
            }
            Err(panic) => Some(words(&*panic)),
        };
        let told = wrong.map(|wrong| format!("`{verb}` of a clone killed at {n}: {wrong}"));
        verdict.wrong.extend(told);
        (format!("clones: `{verb}`"), verdict)
    });
    figures.add(found);
    figures.planned = chosen.len();
    figures
}

// rule C1, C3, C17, C18, C19, Q8
#[test]
fn a_clone_killed_anywhere_leaves_nothing_behind() {
    need!(require_stepper());
    kills(Form::Bounded).settle("clones of a database, killed", 2);
}
