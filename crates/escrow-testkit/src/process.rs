//! Running a process to its end within a time limit, with both streams kept apart and whole.

use std::io::{Read, Write};
use std::process::{Command, Output, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

/// Longer than any honest test step, on a machine with much else to do too.
pub(crate) const LIMIT: Duration = Duration::from_secs(1200);

/// Runs `command` with `stdin`, and returns when the process has ended, even if a child of it still holds a stream.
///
/// Panics when it cannot be started, and, after killing it, when it passes [`LIMIT`].
pub(crate) fn run(mut command: Command, stdin: &[u8]) -> Output {
    let shown = format!("{command:?}");
    let mut child = command
        .stdin(if stdin.is_empty() {
            Stdio::null()
        } else {
            Stdio::piped()
        })
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap_or_else(|error| panic!("cannot start {shown}: {error}"));
    if let Some(mut pipe) = child.stdin.take() {
        let bytes = stdin.to_vec();
        // A program that does not read all of its input is no failure of this crate.
        thread::spawn(move || drop(pipe.write_all(&bytes)));
    }
    let stdout = drain(
        child
            .stdout
            .take()
            .expect("standard output was piped above"),
    );
    let stderr = drain(child.stderr.take().expect("standard error was piped above"));
    let started = Instant::now();
    let mut pause = Duration::from_micros(200);
    let status = loop {
        if let Some(status) = child
            .try_wait()
            .unwrap_or_else(|error| panic!("cannot wait for {shown}: {error}"))
        {
            break status;
        }
        if started.elapsed() > LIMIT {
            let _ = child.kill();
            let _ = child.wait();
            panic!(
                "{shown} did not end within {LIMIT:?}\nstdout: {}\nstderr: {}",
                String::from_utf8_lossy(&stdout.take(Duration::ZERO)),
                String::from_utf8_lossy(&stderr.take(Duration::ZERO)),
            );
        }
        thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(10));
    };
    let grace = Duration::from_secs(2);
    Output {
        status,
        stdout: stdout.take(grace),
        stderr: stderr.take(grace),
    }
}

/// Runs `command`; panics with both streams unless it succeeds.
pub(crate) fn succeed(command: Command) -> Output {
    let shown = format!("{command:?}");
    let output = run(command, b"");
    assert!(
        output.status.success(),
        "{shown} failed: {}\nstdout: {}\nstderr: {}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    output
}

struct Drained {
    bytes: Arc<Mutex<Vec<u8>>>,
    reader: thread::JoinHandle<()>,
}

fn drain(mut from: impl Read + Send + 'static) -> Drained {
    let bytes = Arc::new(Mutex::new(Vec::new()));
    let sink = Arc::clone(&bytes);
    let reader = thread::spawn(move || {
        let mut buffer = [0; 16 * 1024];
        while let Ok(count @ 1..) = from.read(&mut buffer) {
            sink.lock()
                .expect("no holder of this lock panics")
                .extend_from_slice(&buffer[..count]);
        }
    });
    Drained { bytes, reader }
}

impl Drained {
    fn take(&self, grace: Duration) -> Vec<u8> {
        let until = Instant::now() + grace;
        while !self.reader.is_finished() && Instant::now() < until {
            thread::sleep(Duration::from_micros(200));
        }
        std::mem::take(&mut *self.bytes.lock().expect("no holder of this lock panics"))
    }
}
