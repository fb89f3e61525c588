//! The tracer: follows every task of a run, counts its calls, and does at the chosen one what was asked for.
//!
//! Promise: when it returns, or panics, no task of the run is left.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::{Mutex, MutexGuard, mpsc};
use std::thread;
use std::time::Duration;

use libc::user_regs_struct;
use rustix::io::Errno;
use rustix::thread::CpuSet;

use super::calls::{self, Call};
use super::look::{self, Look};
use super::sys::{self, Event, Resume};
use super::{Act, Fault, Job, Run, Step};
use crate::cli::Outcome;

/// Runs the job. An error: the program could not be started at all.
///
/// A thread of its own waits for the program, so that no other process's children are waited for; the caller
/// watches the clock.
pub(super) fn run(job: Job<'_>) -> io::Result<Run> {
    let (shown, limit) = (format!("{:?}", job.command), job.limit);
    let tasks = Tasks::default();
    let (ending, ended) = mpsc::channel::<()>();
    let name = thread::current().name().unwrap_or("stepper").to_owned();
    thread::scope(|scope| {
        let tracer = thread::Builder::new().name(name);
        let tracer = tracer.spawn_scoped(scope, || {
            let _ending = ending;
            trace(job, &tasks)
        })?;
        let mut late = None;
        if ended.recv_timeout(limit) == Err(mpsc::RecvTimeoutError::Timeout) {
            late = Some(tasks.show());
            while !tracer.is_finished() {
                tasks.kill();
                thread::sleep(Duration::from_millis(5));
            }
        }
        let run = tracer
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        if let Some(tasks) = late {
            let said = run.map_or_else(
                |error| error.to_string(),
                |run| {
                    let [out, err] = [run.outcome.stdout_text(), run.outcome.stderr_text()];
                    format!("calls: {}\nstdout: {out}\nstderr: {err}", run.calls)
                },
            );
            panic!("{shown} did not end within {limit:?}\nthere were: {tasks}\n{said}");
        }
        run
    })
}

fn trace(job: Job<'_>, tasks: &Tasks) -> io::Result<Run> {
    if !job.all_processors {
        // Switching between program and tracer is much slower when it wakes another processor. What this thread is
        // bound to, its children are; it ends with the run.
        let mut here = CpuSet::new();
        here.set(rustix::thread::sched_getcpu());
        rustix::thread::sched_setaffinity(None, &here)?;
    }
    let [output, errors] = [sys::memory_file()?, sys::memory_file()?];
    let look = Look::new(&output)?;
    let mut command: Command = job.command;
    command
        .stdin(input(job.stdin)?)
        .stdout(output.try_clone()?)
        .stderr(errors.try_clone()?);
    let only = job.only;
    let filter = calls::filter(|call| only.is_none_or(|names| names.contains(&call.name)));
    let root = sys::start(command, filter)?;
    tasks.lock().insert(root, Task::default());
    let mut tracer = Tracer {
        tasks,
        look,
        root,
        about: job.about,
        record: job.record,
        at: job.at,
        act: job.act,
        forever: None,
        early: BTreeSet::new(),
        started: false,
        status: None,
        calls: 0,
        steps: Vec::new(),
        hit: None,
    };
    tracer.follow();
    let [stdout, stderr] = [read(&output)?, read(&errors)?];
    if !tracer.started {
        return Err(io::Error::other(
            String::from_utf8_lossy(&stderr).into_owned(),
        ));
    }
    let status = tracer.status.expect("the first process has ended");
    let status = match (status.code(), status.signal()) {
        (Some(code), _) => code,
        (None, signal) => -signal.expect("what did not exit was killed"),
    };
    Ok(Run {
        outcome: Outcome {
            status,
            stdout,
            stderr,
        },
        calls: tracer.calls,
        steps: std::mem::take(&mut tracer.steps),
        hit: tracer.hit.take(),
    })
}

/// A pipe, as a program does other things with a file.
fn input(bytes: Vec<u8>) -> io::Result<Stdio> {
    if bytes.is_empty() {
        return Ok(Stdio::null());
    }
    let (input, mut pipe) = io::pipe()?;
    // A program that does not read all of its input is no failure of this crate.
    thread::spawn(move || drop(pipe.write_all(&bytes)));
    Ok(input.into())
}

fn read(file: &File) -> io::Result<Vec<u8>> {
    let length = usize::try_from(file.metadata()?.len()).expect("a file in memory fits in memory");
    let mut bytes = vec![0; length];
    file.read_exact_at(&mut bytes, 0)?;
    Ok(bytes)
}

/// Every task, that is process or thread, that is traced and not known to have ended.
#[derive(Default)]
struct Tasks(Mutex<BTreeMap<i32, Task>>);

#[derive(Default)]
struct Task {
    /// It waits for the child of its vfork, in a way that only a kill ends.
    in_vfork: bool,
}

impl Tasks {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<i32, Task>> {
        self.0.lock().expect("no holder of this lock panics")
    }

    fn kill(&self) {
        for tid in self.lock().keys() {
            // It may have ended by itself.
            let _ = sys::signal(*tid, libc::SIGKILL);
        }
    }

    fn show(&self) -> String {
        let tasks: Vec<String> = self
            .lock()
            .keys()
            .map(|tid| {
                let read = |name| fs::read_to_string(format!("/proc/{tid}/{name}"));
                let [name, at] = ["comm", "wchan"].map(|file| read(file).unwrap_or_default());
                format!("{tid} {} (in {})", name.trim_end(), at.trim_end())
            })
            .collect();
        tasks.join(", ")
    }
}

struct Tracer<'a> {
    tasks: &'a Tasks,
    look: Look,
    root: i32,
    about: Option<fn(&Step) -> bool>,
    record: bool,
    at: u64,
    act: Act<'a>,
    /// With which errno all calls fail from now on.
    forever: Option<i32>,
    /// Tasks that have ended before their parent's stop told of them.
    early: BTreeSet<i32>,
    started: bool,
    status: Option<ExitStatus>,
    calls: u64,
    steps: Vec<Step>,
    hit: Option<Step>,
}

impl Drop for Tracer<'_> {
    fn drop(&mut self) {
        self.kill();
    }
}

impl Tracer<'_> {
    /// Until no task is left.
    fn follow(&mut self) {
        if let Some((_, Event::Signal(_))) = self.wait(self.root, true) {
            alive(sys::watch(self.root));
            self.resume(self.root, Resume::With(0));
        }
        while let Some((tid, event)) = self.wait(-1, true) {
            match event {
                Event::Call => self.call(tid),
                // Stopping for a terminal would stop for ever. A new task begins with SIGSTOP.
                Event::Signal(libc::SIGSTOP | libc::SIGTSTP | libc::SIGTTIN | libc::SIGTTOU) => {
                    self.resume(tid, Resume::With(0));
                }
                Event::Signal(signal) => self.resume(tid, Resume::With(signal)),
                Event::Ended(_) => {}
                _ => self.resume(tid, Resume::With(0)),
            }
        }
    }

    /// The next event, entered into what is known of the tasks. `None`: no such task, or no event now.
    fn wait(&mut self, tid: i32, block: bool) -> Option<(i32, Event)> {
        let (tid, event) = match sys::wait(tid, block) {
            Ok(event) => event?,
            Err(Errno::CHILD) => return None,
            Err(error) => panic!("cannot wait for process {tid}: {error}"),
        };
        let mut tasks = self.tasks.lock();
        match &event {
            Event::Ended(status) => {
                if tasks.remove(&tid).is_none() {
                    self.early.insert(tid);
                }
                if tid == self.root {
                    self.status = Some(*status);
                }
                return Some((tid, event));
            }
            Event::Born { child, vfork } => {
                tasks.entry(tid).or_default().in_vfork = *vfork;
                if !self.early.remove(child) {
                    tasks.entry(*child).or_default();
                }
            }
            Event::VforkDone => tasks.entry(tid).or_default().in_vfork = false,
            Event::Exec { former } => {
                self.started = true;
                if *former != tid {
                    tasks.remove(former);
                }
            }
            Event::Call | Event::CallDone | Event::Signal(_) => {}
        }
        tasks.entry(tid).or_default();
        drop(tasks);
        Some((tid, event))
    }

    fn resume(&self, tid: i32, how: Resume) {
        alive(sys::resume(tid, how));
    }

    /// A task is about to make a call that the filter traces.
    fn call(&mut self, tid: i32) {
        let Some(mut registers) = alive(sys::registers(tid)) else {
            return;
        };
        let Some(call) = calls::find(registers.orig_rax) else {
            return self.resume(tid, Resume::With(0));
        };
        if !self.look.counts(tid, call, &registers) {
            return self.resume(tid, Resume::With(0));
        }
        let about = self.about.filter(|_| self.forever.is_none());
        if about.is_some_and(|about| !about(&look::step(tid, call, &registers))) {
            return self.resume(tid, Resume::With(0));
        }
        self.calls += 1;
        let chosen = self.calls == self.at;
        if self.record || chosen {
            let step = look::step(tid, call, &registers);
            if chosen {
                self.hit = Some(step.clone());
            }
            if self.record {
                self.steps.push(step);
            }
        }
        if chosen {
            self.act(tid, call, &mut registers);
        } else if let Some(errno) = self.forever {
            self.refuse(tid, &mut registers, errno);
        } else {
            self.resume(tid, Resume::With(0));
        }
    }

    /// The chosen call is about to be made.
    fn act(&mut self, tid: i32, call: &Call, registers: &mut user_regs_struct) {
        match std::mem::replace(&mut self.act, Act::Nothing) {
            Act::Nothing => self.resume(tid, Resume::With(0)),
            Act::Fault(Fault::Once(errno)) => self.refuse(tid, registers, errno),
            Act::Fault(Fault::Forever(errno)) => {
                self.forever = Some(errno);
                self.refuse(tid, registers, errno);
            }
            Act::Fault(Fault::Kill) => {
                self.settle(tid);
                self.kill();
            }
            Act::Look(look) => {
                self.settle(tid);
                look(tid.unsigned_abs());
                self.kill();
            }
            Act::Fault(Fault::Tear) => {
                self.settle(tid);
                if look::halve(tid, call, registers) {
                    alive(sys::set_registers(tid, registers));
                }
                self.resume(tid, Resume::ToExit);
                while let Some((_, event)) = self.wait(tid, true) {
                    match event {
                        Event::CallDone | Event::Ended(_) => break,
                        _ => self.resume(tid, Resume::ToExit),
                    }
                }
                self.kill();
            }
        }
    }

    /// The call is not made, and fails.
    fn refuse(&self, tid: i32, registers: &mut user_regs_struct, errno: i32) {
        registers.orig_rax = u64::MAX;
        registers.rax = i64::from(-errno).cast_unsigned();
        if alive(sys::set_registers(tid, registers)).is_some() {
            self.resume(tid, Resume::With(0));
        }
    }

    /// Returns when all other tasks are paused, with the calls that were under way done.
    fn settle(&mut self, except: i32) {
        let mut stopped = BTreeSet::from([except]);
        let mut told = stopped.clone();
        loop {
            let moving: Vec<i32> = self
                .tasks
                .lock()
                .iter()
                .filter(|(tid, task)| !task.in_vfork && !stopped.contains(*tid))
                .map(|(tid, _)| *tid)
                .collect();
            for tid in moving.iter().filter(|tid| told.insert(**tid)) {
                alive(sys::signal(*tid, libc::SIGSTOP));
            }
            if moving.is_empty() {
                return;
            }
            match self.wait(-1, false) {
                Some((tid, _)) => _ = stopped.insert(tid),
                None => {
                    // The first thread of a process has no end of its own while there are others.
                    stopped.extend(moving.iter().filter(|tid| is_dead(**tid)));
                    thread::sleep(Duration::from_micros(20));
                }
            }
        }
    }

    /// Ends all tasks.
    fn kill(&mut self) {
        self.tasks.kill();
        while let Some((tid, event)) = self.wait(-1, true) {
            if !matches!(event, Event::Ended(_)) {
                // Born meanwhile.
                alive(sys::signal(tid, libc::SIGKILL));
            }
        }
    }
}

fn is_dead(tid: i32) -> bool {
    let Ok(stat) = fs::read_to_string(format!("/proc/{tid}/stat")) else {
        return true;
    };
    let state = stat
        .rsplit_once(") ")
        .and_then(|(_, rest)| rest.chars().next());
    matches!(state, Some('Z' | 'X'))
}

/// What ptrace says; `None` about a task that was killed meanwhile, whose end is an event of its own.
fn alive<T>(result: Result<T, Errno>) -> Option<T> {
    match result {
        Ok(value) => Some(value),
        Err(Errno::SRCH) => None,
        Err(error) => panic!("cannot trace: {error}"),
    }
}
