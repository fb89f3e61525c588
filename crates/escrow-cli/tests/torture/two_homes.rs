//! A soak: several processes on two homes do everything at random, and are killed at random. One original belongs to
//! both homes.
//!
//! Every plan of a shape gives the same file in each of its members the same token, so that the members of a commit can
//! be compared. A plan is filled by the worker that made it; from then on every worker does anything with it. In the
//! end, for each home:
//!
//! - `recover` succeeds, and finds nothing to do the second time; `log --verify` holds;
//! - the members of a shape hold the same token, and only tokens of plans that were committed are there;
//! - every open plan that was filled is committed (or stopped by a conflict) or rolled back; every plan is cleaned up;
//! - nothing is left on disk, no process, no mount.

use std::os::unix::process::CommandExt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use escrow_testkit::model::Rng;

use crate::sweep::say;
use crate::*;

/// The originals: two of each home, and one of both.
const ORIGINALS: [&str; 5] = ["A1", "B1", "A2", "B2", "S"];
/// The members of each shape, by home.
const SHAPES: [[&[&str]; 4]; 2] = [
    [&["A1", "B1"], &["B1", "S"], &["A1", "B1", "S"], &["S"]],
    [&["A2", "B2"], &["B2", "S"], &["A2", "B2", "S"], &["S"]],
];
const STRATEGIES: [&str; 3] = ["auto", "filesystem_copy", "copy_on_write"];
const WORKERS: u64 = 4;

/// A plan that was asked for.
#[derive(Debug, Clone)]
struct PlanRecord {
    home: usize,
    name: String,
    token: String,
    /// Every member holds the token: from here on anything may be done with it.
    filled: bool,
}

/// One world, while processes work in it.
struct Episode {
    world: World,
    clis: [Cli; 2],
    plans: Mutex<Vec<PlanRecord>>,
    released: Mutex<BTreeSet<String>>,
    kills: AtomicUsize,
    commands: AtomicUsize,
}

/// How a command ended.
struct Ended {
    status: i32,
    stdout: String,
    stderr: String,
}

fn held<T>(lock: &Mutex<T>) -> MutexGuard<'_, T> {
    lock.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The file that a shape changes. The members of the last shape are the same for both homes.
fn file(home: usize, shape: usize) -> String {
    match shape {
        3 => "shared.txt".to_owned(),
        _ => format!("home{}-shape{shape}.txt", home + 1),
    }
}

impl Episode {
    fn new() -> Self {
        let world = World::new();
        for name in ORIGINALS {
            let original = world.dir(format!("originals/{name}"));
            let files = (0..2).flat_map(|home| (0..4).map(move |shape| file(home, shape)));
            for file in files {
                write(original.join(file), "base\n");
            }
        }
        let cli = Cli::new(&world, &crate::binary());
        let clis = ["home1", "home2"].map(|home| cli.clone().env("ESCROW_HOME", world.dir(home)));
        Self {
            world,
            clis,
            plans: Mutex::default(),
            released: Mutex::default(),
            kills: AtomicUsize::new(0),
            commands: AtomicUsize::new(0),
        }
    }

    fn original(&self, name: &str) -> PathBuf {
        self.world.at("originals").join(name)
    }

    /// Runs a command, and kills it after a while if it is to be.
    fn run(
        &self,
        home: usize,
        words: &[&str],
        stdin: &str,
        kill: Option<(Duration, bool)>,
    ) -> Ended {
        self.commands.fetch_add(1, Ordering::Relaxed);
        let Some((after, group)) = kill else {
            let outcome = self.clis[home].clone().stdin(stdin).run(words);
            return Ended {
                status: outcome.status,
                stdout: outcome.stdout_text(),
                stderr: outcome.stderr_text(),
            };
        };
        let input = self.world.at(format!("stdin-{:?}", thread::current().id()));
        write(&input, stdin);
        let mut command = self.clis[home].command(words);
        command
            .stdin(fs::File::open(&input).expect("it was written above"))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0);
        let mut child = command.spawn().expect("escrow can be started");
        thread::sleep(after);
        let pid = rustix::process::Pid::from_child(&child);
        let killed = match group {
            true => rustix::process::kill_process_group(pid, rustix::process::Signal::KILL),
            false => rustix::process::kill_process(pid, rustix::process::Signal::KILL),
        };
        killed.expect("a child that was not waited for can be killed");
        let ended = child.wait().expect("a child can be waited for");
        let status = ended.code().unwrap_or_else(|| -ended.signal().unwrap_or(0));
        if status == -9 {
            self.kills.fetch_add(1, Ordering::Relaxed);
        }
        Ended {
            status,
            stdout: String::new(),
            stderr: "(not kept)".to_owned(),
        }
    }

    /// Works until the time is up.
    fn work(&self, seed: u64, worker: u64, until: Instant) -> Vec<String> {
        let mut rng = Rng::new(seed.wrapping_mul(31).wrapping_add(worker));
        let mut wrong = Vec::new();
        let mut number = 0;
        while Instant::now() < until {
            number += 1;
            let done = match rng.one_in(4) {
                true => self.begin(&mut rng, &format!("p{worker}-{number}")),
                false => self.anything(&mut rng, &format!("f{worker}-{number}")),
            };
            wrong.extend(done.err());
        }
        wrong
    }

    fn kill(rng: &mut Rng) -> Option<(Duration, bool)> {
        let micros = u64::try_from(rng.below(45_000)).unwrap_or(0);
        let (wanted, group) = (rng.one_in(3), rng.one_in(2));
        wanted.then_some((Duration::from_micros(micros), group))
    }

    /// Makes a plan, and fills it.
    fn begin(&self, rng: &mut Rng, name: &str) -> Result<(), String> {
        let (home, shape) = (rng.below(2), rng.below(4));
        let members = SHAPES[home][shape];
        let plan = PlanRecord {
            home,
            name: name.to_owned(),
            token: format!("token of {name}\n"),
            filled: false,
        };
        held(&self.plans).push(plan.clone());
        let places: Vec<String> = members
            .iter()
            .map(|member| self.original(member).display().to_string())
            .collect();
        let strategy = rng.pick(&STRATEGIES);
        let mut line = vec!["plan", "create", name, "--strategy", strategy];
        line.extend(places.iter().flat_map(|place| ["-r", place.as_str()]));
        let made = self.run(home, &line, "", Self::kill(rng));
        sane(&line, &made)?;
        if made.status != 0 {
            return Ok(());
        }
        let file = file(home, shape);
        let text = plan.token.as_str();
        // At last without a kill, so that most plans are filled.
        for round in 0..3 {
            let mut good = true;
            for member in members {
                let kill = Self::kill(rng).filter(|_| round < 2);
                let line = ["write", name, member, &file];
                let ended = self.run(home, &line, text, kill);
                sane(&line, &ended)?;
                good &= ended.status == 0;
            }
            if good {
                let mut plans = held(&self.plans);
                if let Some(plan) = plans.iter_mut().find(|plan| plan.name == name) {
                    plan.filled = true;
                }
                break;
            }
        }
        Ok(())
    }

    /// Does anything with any plan.
    fn anything(&self, rng: &mut Rng, name: &str) -> Result<(), String> {
        let plan = {
            let plans = held(&self.plans);
            match plans.len() {
                0 => return Ok(()),
                count => plans[rng.below(count)].clone(),
            }
        };
        let p = plan.name.as_str();
        const ALWAYS: usize = 7;
        let choice = match plan.filled {
            true => rng.below(15),
            false => rng.below(ALWAYS),
        };
        let line: Vec<&str> = match choice {
            0 => vec!["gc"],
            1 => vec!["recover"],
            2 => vec!["status"],
            3 => vec!["diff", p],
            4 => vec!["cleanup", p, "--yes"],
            5 => vec!["log", "--verify"],
            6 => vec!["plan", "list"],
            7 => vec!["checkpoint", "create", p, "-m", "r"],
            8 => vec!["restore", p, "r"],
            9 => vec!["rollback", p, "--yes"],
            10 => vec!["plan", "fork", p, name],
            11 => vec!["undo", p, "--yes"],
            12 => vec!["-q", "run", "--plan", p, "--", "sleep", "0.01"],
            _ => vec!["commit", p, "--yes"],
        };
        if line[0] == "plan" && line[1] == "fork" {
            held(&self.plans).push(PlanRecord {
                name: name.to_owned(),
                ..plan.clone()
            });
        }
        let ended = self.run(plan.home, &line, "", Self::kill(rng));
        if line[0] == "commit" && matches!(ended.status, -9 | 0 | 5) {
            held(&self.released).insert(plan.token.clone());
        }
        sane(&line, &ended)
    }

    /// The members of each shape hold the same, and only what was released.
    fn compare(&self, when: &str) -> Result<(), String> {
        let released = held(&self.released);
        for (home, shapes) in SHAPES.iter().enumerate() {
            for (shape, members) in shapes.iter().enumerate() {
                let file = file(home, shape);
                let mut texts = BTreeSet::new();
                for member in *members {
                    let path = self.original(member).join(&file);
                    let text = fs::read_to_string(&path)
                        .map_err(|error| format!("{when}: {}: {error}", path.display()))?;
                    if text != "base\n" && !released.contains(&text) {
                        return Err(format!(
                            "{when}: {member}/{file} holds {text:?}, which was never released"
                        ));
                    }
                    texts.insert(text);
                }
                if texts.len() != 1 {
                    return Err(format!(
                        "{when}: TORN: {file} in {members:?} holds {texts:?}"
                    ));
                }
            }
        }
        Ok(())
    }

    fn must(&self, home: usize, words: &[&str]) -> Result<String, String> {
        let ended = self.run(home, words, "", None);
        match ended.status {
            0 => Ok(ended.stdout),
            status => Err(format!(
                "in the end `{}` in home {} ended with {status}: {}",
                words.join(" "),
                home + 1,
                ended.stderr
            )),
        }
    }

    /// Everything that must hold in the end.
    fn end(&self, rng: &mut Rng) -> Vec<String> {
        let mut wrong = Vec::new();
        wrong.extend(self.no_process().err());
        for home in 0..2 {
            wrong.extend(self.must(home, &["recover"]).err());
        }
        wrong.extend(self.compare("after recover").err());
        for home in 0..2 {
            wrong.extend(self.settle(home, rng).err());
        }
        wrong.extend(self.compare("when every plan was settled").err());
        for home in 0..2 {
            wrong.extend(self.clean(home).err());
        }
        wrong.extend(self.compare("when every plan was cleaned up").err());
        wrong.extend(self.nothing_left());
        wrong
    }

    /// Commits or rolls back every plan that is open and filled.
    fn settle(&self, home: usize, rng: &mut Rng) -> Result<(), String> {
        let again = self.must(home, &["--json", "recover"])?;
        if parse(&again)?["recovered"]
            .as_array()
            .is_none_or(|all| !all.is_empty())
        {
            return Err(format!("the second recover had something to do: {again}"));
        }
        let plans = held(&self.plans).clone();
        for (name, state) in self.listed(home)? {
            let known = plans.iter().find(|plan| plan.name == name && plan.filled);
            let Some(plan) = known.filter(|_| state == "open") else {
                continue;
            };
            // An interrupted fork is not whole, and says so.
            let forked = name.starts_with('f');
            let line: &[&str] = match rng.one_in(2) {
                true => &["commit", &name, "--yes"],
                false => &["rollback", &name, "--yes"],
            };
            let ended = self.run(home, line, "", None);
            sane(line, &ended)?;
            if line[0] == "commit" && ended.status == 0 {
                held(&self.released).insert(plan.token.clone());
            }
            let fine = match line[0] {
                "commit" => matches!(ended.status, 0 | 4),
                _ => ended.status == 0,
            };
            if !fine && !forked {
                let (status, stderr) = (ended.status, ended.stderr);
                return Err(format!(
                    "`{}` ended with {status}: {stderr}",
                    line.join(" ")
                ));
            }
        }
        Ok(())
    }

    /// The plans of a home: name and state.
    fn listed(&self, home: usize) -> Result<Vec<(String, String)>, String> {
        let text = self.must(home, &["--json", "plan", "list"])?;
        let found = parse(&text)?;
        let plans = found["plans"].as_array().ok_or("there is no list")?;
        let word = |plan: &Value, key: &str| plan[key].as_str().unwrap_or_default().to_owned();
        Ok(plans
            .iter()
            .map(|plan| (word(plan, "name"), word(plan, "state")))
            .collect())
    }

    fn clean(&self, home: usize) -> Result<(), String> {
        for (name, state) in self.listed(home)? {
            if state != "cleaned_up" {
                self.must(home, &["cleanup", &name, "--yes"])?;
            }
        }
        self.must(home, &["gc"])?;
        self.must(home, &["log", "--verify"]).map(drop)
    }

    fn nothing_left(&self) -> Vec<String> {
        let mut found = Vec::new();
        let names = |path: PathBuf| -> Vec<String> {
            let entries = fs::read_dir(&path)
                .unwrap_or_else(|error| panic!("cannot list {}: {error}", path.display()));
            entries
                .flatten()
                .map(|entry| entry.file_name().to_string_lossy().into_owned())
                .collect()
        };
        for place in "home1/sandboxes; home1/locks; home2/sandboxes; home2/locks".split("; ") {
            let left = names(self.world.at(place));
            found.extend(left.iter().map(|name| format!("left in {place}: {name}")));
        }
        let beside = names(self.world.at("originals"));
        let ours = |name: &&String| !ORIGINALS.contains(&name.as_str());
        found.extend(
            beside
                .iter()
                .filter(ours)
                .map(|name| format!("left beside the originals: {name}")),
        );
        for original in ORIGINALS {
            let hidden = names(self.original(original));
            let hidden = hidden.iter().filter(|name| !name.ends_with(".txt"));
            found.extend(hidden.map(|name| format!("left in {original}: {name}")));
        }
        let world = self.world.path().display().to_string();
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let mounts = mounts.lines().filter(|line| line.contains(&world));
        found.extend(mounts.map(|line| format!("still mounted: {line}")));
        found
    }

    /// No process of this world is left. What was killed takes a while to go.
    fn no_process(&self) -> Result<(), String> {
        let until = Instant::now() + Duration::from_secs(30);
        loop {
            let left = self.processes();
            if left.is_empty() {
                return Ok(());
            }
            if Instant::now() > until {
                return Err(format!("processes are left: {}", left.join(", ")));
            }
            thread::sleep(Duration::from_millis(20));
        }
    }

    fn processes(&self) -> Vec<String> {
        let world = self.world.path().display().to_string();
        let mut found = Vec::new();
        let entries = fs::read_dir("/proc").expect("there is a /proc");
        for entry in entries.flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            if !name.bytes().all(|byte| byte.is_ascii_digit()) {
                continue;
            }
            let holds = |file: &str| {
                let bytes = fs::read(entry.path().join(file)).unwrap_or_default();
                String::from_utf8_lossy(&bytes).contains(&world)
            };
            if holds("environ") || holds("cmdline") {
                found.push(name);
            }
        }
        found
    }
}

/// No command may be ended by a signal that was not sent to it, or fail without a word.
fn sane(words: &[&str], ended: &Ended) -> Result<(), String> {
    let line = words.join(" ");
    match ended.status {
        0 | -9 => Ok(()),
        1..=5 | 125 if !ended.stderr.is_empty() => Ok(()),
        // What is run inside is ended with its supervisor.
        128..=160 if words.contains(&"run") => Ok(()),
        status => Err(format!(
            "`{line}` ended with {status}: {}{}",
            ended.stdout, ended.stderr
        )),
    }
}

fn parse(text: &str) -> Result<Value, String> {
    serde_json::from_str(text).map_err(|error| format!("{error}: {text}"))
}

/// One world for so long.
fn episode(seed: u64, time: Duration) -> Figures {
    let started = Instant::now();
    let mut figures = Figures::default();
    let done = std::panic::catch_unwind(|| {
        let episode = Episode::new();
        let until = Instant::now() + time;
        let mut wrong: Vec<String> = thread::scope(|scope| {
            let workers: Vec<_> = (0..WORKERS)
                .map(|worker| {
                    let episode = &episode;
                    scope.spawn(move || episode.work(seed, worker, until))
                })
                .collect();
            workers
                .into_iter()
                .flat_map(|worker| worker.join().unwrap_or_else(|panic| vec![words(&*panic)]))
                .collect()
        });
        wrong.extend(episode.end(&mut Rng::new(seed)));
        let kills = episode.kills.load(Ordering::Relaxed);
        let commands = episode.commands.load(Ordering::Relaxed);
        say(&format!(
            "torture: two homes, seed {seed}: {commands} commands, {kills} killed"
        ));
        (kills, wrong)
    });
    let (kills, wrong) = done.unwrap_or_else(|panic| (0, vec![words(&*panic)]));
    for wrong in wrong {
        say(&format!("torture: WRONG: two homes, seed {seed}: {wrong}"));
        figures
            .wrong
            .push(format!("two homes, seed {seed}: {wrong}"));
    }
    figures.points = kills;
    figures.scenarios.insert("two homes".to_owned(), kills);
    figures.took = started.elapsed();
    figures
}

/// World after world, until the time is up. `ESCROW_TORTURE_SEED` repeats one.
pub(crate) fn soak(time: Duration) -> Figures {
    let given = std::env::var("ESCROW_TORTURE_SEED").ok();
    let given = given.and_then(|text| text.parse::<u64>().ok());
    let until = Instant::now() + time;
    let clock = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let mut seed = given.unwrap_or_else(|| clock.map_or(1, |time| time.as_secs()));
    let mut figures = Figures::default();
    while Instant::now() < until && figures.wrong.len() < 25 {
        figures.add(episode(seed, Duration::from_secs(15)));
        seed += 1;
    }
    figures
}
