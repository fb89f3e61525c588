//! A plan of a checkout, a directory, a SQLite database and a PostgreSQL database, killed at any call of its commit: all four
//! are old or all four are new, asked with `git`, `cat`, `sqlite3` and `psql`, and nothing stays prepared on the server.

use escrow_testkit::postgres::{Postgres, program};

use crate::sweep::{each_here, thin};
use crate::*;

struct Four {
    server: Postgres,
    world: World,
    cli: Cli,
}

impl Four {
    fn new() -> Self {
        let server = Postgres::start(true);
        server.sql("shop", "CREATE TABLE t (n int); INSERT INTO t VALUES (0)");
        let world = World::new();
        world.dir("code");
        world.dir("files");
        let begin = "git -C code init -q -b main; git -C code config user.name U; git -C code config user.email u@example.org; \
            echo 0 > code/n; git -C code add n; git -C code commit -qm 0; echo 0 > files/n; \
            sqlite3 data.db 'CREATE TABLE t (n); INSERT INTO t VALUES (0)'";
        sh(world.path(), begin);
        let cli = Cli::new(&world, &binary()).cwd(world.path());
        Self { server, world, cli }
    }

    /// A plan that puts this number everywhere.
    fn prepare(&self, number: u64) {
        let url = self.server.url("postgres", "shop");
        let mut words = vec!["plan", "create", "t"];
        for one in ["code", "files", "data.db", &url] {
            words.extend(["-r", one]);
        }
        self.cli.ok(words);
        let work = format!(
            "set -e; cd '{}'; echo {number} > code/n; git -C code commit -qam {number}; echo {number} > files/n; \
             sqlite3 data.db 'UPDATE t SET n = {number}'; '{}' -Xqc 'UPDATE t SET n = {number}'",
            self.world.path().display(),
            program("psql").display()
        );
        self.cli.ok(["run", "--plan", "t", "--", "sh", "-c", &work]);
    }

    /// What the originals hold.
    fn look(&self) -> Vec<String> {
        let script =
            "git -C code show HEAD:n; cat code/n files/n; sqlite3 data.db 'SELECT n FROM t'";
        let text = sh(self.world.path(), script);
        let mut found: Vec<String> = text.lines().map(str::to_owned).collect();
        found.push(self.server.sql("shop", "SELECT n FROM t"));
        found
    }

    /// Which number all of them hold.
    fn number(&self) -> Result<u64, String> {
        let found = self.look();
        let same = found.iter().all(|one| *one == found[0]);
        let number = found[0].parse().ok().filter(|_| same && found.len() == 5);
        let prepared = self.server.prepared();
        match number.filter(|_| prepared.is_empty()) {
            Some(number) => Ok(number),
            None => Err(format!("{found:?}, prepared: {prepared:?}")),
        }
    }
}

/// Commits, killed at their calls.
pub(crate) fn kills(form: Form) -> Figures {
    let four = Four::new();
    four.prepare(1);
    let all = sweep::calls(four.cli.stepper("commit t --yes"), "commit");
    let mut figures = Figures::default();
    figures.wrong.extend(four.number().err());
    four.cli.ok("cleanup t --yes");
    let all: Vec<u64> = (1..=all).collect();
    let chosen = match form {
        Form::Bounded => thin(&all, 9),
        Form::Long(_) => all,
    };
    let mut number = 1;
    let found = each_here(&chosen, form.until(), |&n| {
        let (old, new) = (number, number + 1);
        number = new;
        let attempt = |verdict: &mut Verdict| {
            four.prepare(new);
            let run = four.cli.stepper("commit t --yes").fault(n, Fault::Kill);
            verdict.hit.clone_from(&run.hit);
            four.cli.ok("recover");
            // What was not committed is still there, and can be.
            if four.number()? == old {
                four.cli.ok("commit t --yes");
            }
            let now = four.number()?;
            four.cli.ok("cleanup t --yes");
            match now == new {
                true => Ok(()),
                false => Err(format!("all hold {now} instead of {new}")),
            }
        };
        let verdict = Verdict::of(attempt, |_| format!("four members: killed at {n}"));
        let members = "checkout, directory, SQLite, PostgreSQL";
        (members.to_owned(), verdict)
    });
    figures.add(found);
    figures.planned = chosen.len();
    figures
}

// rule C1, C3, C18, C19, Q8
#[test]
fn a_commit_of_four_kinds_killed_anywhere_is_one_thing() {
    need!(require_stepper());
    kills(Form::Bounded).settle("four kinds of members, killed", 8);
}
