//! A directory, a SQLite database and a bucket of S3 in one plan, the last by the strategy of the examples: whatever is killed — the engine, its
//! program or the server — and wherever a call fails, all three are old or all three are new.
//!
//! The server is killed with a request in its hands, before or after the request is carried out, and comes back with everything that it answered for.

use std::sync::atomic::{AtomicU64, Ordering};

use escrow_testkit::s3::S3;

use crate::sweep;
use crate::*;

/// What goes wrong.
#[derive(Debug, Clone, Copy)]
enum Loss {
    /// The server is killed at its n-th request.
    Server(u64, &'static str),
    /// The program is killed at its n-th request that changes something.
    Program(u64, &'static str),
    /// Every process is killed at its n-th call, or the call fails.
    Call(u64, Fault),
}

#[derive(Clone, Copy)]
struct Lost<'a> {
    server: &'a S3,
    undo: bool,
    loss: Loss,
}

/// The strategy of the examples; it kills itself where the file `die` says so.
const DYING: &str = r#"
import os, signal, versioned_bucket
from versioned_bucket import VersionedBucket

carry_out = versioned_bucket.Bucket.call

def call(self, method, key, **more):
    if method not in ("put_object", "delete_object") or not os.path.exists("die"):
        return carry_out(self, method, key, **more)
    with open("die") as file:
        left, how = file.read().split()
    with open("die", "w") as file:
        file.write(f"{int(left) - 1} {how}")
    if left == "1" and how == "before":
        os.kill(os.getpid(), signal.SIGKILL)
    answer = carry_out(self, method, key, **more)
    if left == "1":
        os.kill(os.getpid(), signal.SIGKILL)
    return answer

versioned_bucket.Bucket.call = call
"#;

/// Three originals in one plan that changes each of them.
struct Three<'a> {
    world: World,
    cli: Cli,
    server: &'a S3,
    bucket: String,
}

impl<'a> Three<'a> {
    fn new(server: &'a S3) -> Self {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let bucket = format!("bucket{number}");
        server.bucket(&bucket);
        server.put(&bucket, "key", "old");
        let world = World::new();
        write(world.dir("app").join("file"), "old");
        let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/strategies/s3");
        let example = examples.join("versioned_bucket.py");
        fs::copy(example, world.at("versioned_bucket.py")).expect("there is room");
        write(world.at("dying.py"), DYING);
        let config = format!(
            "sandbox: {{custom_strategies: {{s3: {{module: dying, class: VersionedBucket, options: {{endpoint: '{}', region: us-east-1}}, \
             env: {{AWS_ACCESS_KEY_ID: test, AWS_SECRET_ACCESS_KEY: test}}}}}}}}\n\
             resource_types: [{{name: s3-bucket, location: url, sandbox_strategy: s3}}]\n\
             resources: {{app: {{at: app}}, db: {{at: data.db}}, objects: {{at: 's3://{bucket}', type: s3-bucket}}}}\n",
            server.address
        );
        write(world.at("escrow.yaml"), config);
        let three = Self {
            cli: Cli::new(&world, &binary()).env("PATH", server.path()),
            world,
            server,
            bucket,
        };
        three
            .sql("CREATE TABLE t (k INTEGER PRIMARY KEY, v TEXT); INSERT INTO t VALUES (1, 'old')");
        let cli = &three.cli;
        cli.trust();
        cli.ok("plan create p --resource app --resource db --resource objects");
        let put = |line: &str| cli.clone().stdin("new").ok(line);
        put("write p app file");
        put("write p objects key");
        put("write p objects deep/more");
        cli.ok(["sql", "p", "db", "UPDATE t SET v = 'new'"]);
        three
    }

    fn sql(&self, text: &str) -> String {
        let mut command = Command::new("sqlite3");
        let said = output_of(command.arg(self.world.at("data.db")).arg(text));
        said.trim().to_owned()
    }

    /// What the originals hold; of the object that is new, whether it is there.
    fn originals(&self) -> [String; 4] {
        let get = |key: &str| self.server.get(&self.bucket, key);
        let more = get("deep/more").map_or("old".to_owned(), |text| text);
        let file = fs::read_to_string(self.world.at("app/file")).expect("it is there");
        let object = get("key").expect("it is there");
        [file, self.sql("SELECT v FROM t"), object, more]
    }

    /// Which side all of them are on.
    fn side(&self) -> Result<&'static str, String> {
        let found = self.originals();
        let sides = ["old", "new"].into_iter();
        let mut sides = sides.filter(|side| found.iter().all(|one| one == side));
        sides.next().ok_or_else(|| format!("mixed: {found:?}"))
    }

    /// Without the server, what needs it waits.
    fn waits(&self) -> Result<(), String> {
        match self.cli.run("recover") {
            done if [0, 5].contains(&done.status) => Ok(()),
            done => Err(format!(
                "`recover` without the server ended with {}: {}",
                done.status,
                done.stderr_text()
            )),
        }
    }

    fn must(&self, line: &str) -> Result<(), String> {
        let done = self.cli.run(line);
        match done.status {
            0 => Ok(()),
            status => Err(format!(
                "`{line}` ended with {status}: {}",
                done.stderr_text()
            )),
        }
    }
}

impl Lost<'_> {
    /// Whether it went wrong at all, and what must not be.
    fn check(&self) -> (bool, Result<(), String>) {
        // One that is killed serves nothing else meanwhile.
        let own = matches!(self.loss, Loss::Server(..)).then(S3::new);
        let three = Three::new(own.as_ref().unwrap_or(self.server));
        let line = if self.undo { "undo p" } else { "commit p" };
        if self.undo {
            three.cli.ok("commit p");
        }
        let hit = match self.loss {
            Loss::Server(at, how) => {
                three.server.dies(at, how);
                three.cli.run(line);
                let hit = three.server.is_dead();
                if hit {
                    if let Err(wrong) = three.waits() {
                        return (hit, Err(wrong));
                    }
                    three.server.restart();
                }
                three.server.count();
                hit
            }
            Loss::Program(at, how) => {
                write(three.world.at("die"), format!("{at} {how}"));
                three.cli.run(line);
                let left = fs::read_to_string(three.world.at("die")).expect("it is there");
                remove(three.world.at("die"));
                !left.starts_with(|c: char| c.is_ascii_digit() && c != '0')
            }
            Loss::Call(n, fault) => three.cli.stepper(line).fault(n, fault).hit.is_some(),
        };
        (hit, self.settle(&three))
    }

    fn settle(&self, three: &Three<'_>) -> Result<(), String> {
        // What was taken back, or finished, already stays so.
        three.must("recover")?;
        let side = three.side()?;
        let (line, other) = match side {
            "new" => ("undo p", "old"),
            // One that was undone is over.
            _ if self.undo => return three.must("cleanup p"),
            _ => ("commit p", "new"),
        };
        three.must(line)?;
        if three.side()? != other {
            return Err(format!("after `{line}`: {:?}", three.originals()));
        }
        three.must("cleanup p")?;
        match three.server.versions(&three.bucket, ".escrow/") {
            0 => Ok(()),
            left => Err(format!("{left} staged versions are left")),
        }
    }
}

impl Trial for Lost<'_> {
    fn plan(&self) -> String {
        "a directory, SQLite and S3".to_owned()
    }

    fn run(&self) -> Verdict {
        let (hit, checked) = self.check();
        let what = if self.undo { "undo" } else { "commit" };
        let wrong = checked.err();
        let wrong = wrong.map(|wrong| format!("{what}, {:?}: {wrong}", self.loss));
        Verdict {
            hit: hit.then(|| Step::named("request")),
            wrong: wrong.into_iter().collect(),
        }
    }
}

/// Every loss. In the bounded form nothing is counted first, because every scene costs seconds: of the undo there are fewer.
pub(crate) fn losses(form: Form) -> Figures {
    let server = S3::new();
    let mut requests = Vec::new();
    let mut calls = Vec::new();
    // An object is put, or a version removed, at these requests of the server.
    let few: [&[_]; 2] = [&[(4, "after"), (6, "before")], &[(4, "after")]];
    for (undo, line, most, few) in [(false, "commit p", 4, few[0]), (true, "undo p", 2, few[1])] {
        let point = |loss| Lost {
            server: &server,
            undo,
            loss,
        };
        let scene = || {
            let three = Three::new(&server);
            if undo {
                three.cli.ok("commit p");
            }
            three
        };
        let both = |at| ["before", "after"].map(|how| (at, how));
        let programs = (1..=most).flat_map(both);
        let mut programs: Vec<_> = programs
            .map(|(at, how)| point(Loss::Program(at, how)))
            .collect();
        if !form.is_long() {
            requests.extend(few.iter().map(|&(at, how)| point(Loss::Server(at, how))));
            requests.extend(programs.pop());
            calls.push(point(Loss::Call(if undo { 30 } else { 60 }, Fault::Kill)));
            continue;
        }
        let three = scene();
        server.count();
        three.cli.ok(line);
        let losses = (1..=server.count()).flat_map(both);
        requests.extend(losses.map(|(at, how)| point(Loss::Server(at, how))));
        requests.append(&mut programs);
        let counted = sweep::calls(scene().cli.stepper(line), line);
        let faults = [Fault::Kill, Fault::Once(28)];
        calls.extend((1..=counted).flat_map(|n| faults.map(|fault| point(Loss::Call(n, fault)))));
    }
    let form = form.part(2);
    let mut figures = form.run(requests, 5);
    figures.add(form.run(calls, 2));
    figures
}

// rule C1, C3, C4, C6, X1
#[test]
fn a_directory_a_database_and_a_bucket_are_never_mixed_whatever_is_killed() {
    need!(require_stepper());
    losses(Form::Bounded).settle("a directory, SQLite and S3", 7);
}
