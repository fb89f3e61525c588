//! The time limit of an answer: at its end the process denies and ends, whatever it waits for.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::denial;

/// When the process ends, and how.
struct Limit {
    at: Instant,
    after: Duration,
    /// The exit status; 2 also prints the denial.
    status: i32,
}

/// A thread that ends the process at the limit.
pub(super) struct Watchdog(Arc<Mutex<Limit>>);

impl Watchdog {
    pub(super) fn start(after: Duration) -> Self {
        let limit = Arc::new(Mutex::new(Limit {
            at: Instant::now() + after,
            after,
            status: 2,
        }));
        let watched = Arc::clone(&limit);
        std::thread::spawn(move || {
            loop {
                let left = {
                    let limit = watched.lock().unwrap_or_else(PoisonError::into_inner);
                    let left = limit.at.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        end(&limit);
                    }
                    left
                };
                std::thread::sleep(left);
            }
        });
        Self(limit)
    }

    /// Gives the event, which is no tool call, more time and another exit status.
    pub(super) fn extend(&self, after: Duration, status: i32) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Limit {
            at: Instant::now() + after,
            after,
            status,
        };
    }
}

fn end(limit: &Limit) -> ! {
    let why = format!(
        "no answer within {} s; the copy of a large project is made once, by `escrow hook` at the start of the session",
        limit.after.as_secs()
    );
    stop(&why, limit.status)
}

/// Says why on both streams and ends. Writes past the printer, whose locks another thread may hold.
fn stop(why: &str, status: i32) -> ! {
    let answer = match status {
        2 => format!("{}\n", denial(why)),
        _ => String::new(),
    };
    for (stream, text) in [
        (rustix::stdio::stdout(), answer),
        (rustix::stdio::stderr(), format!("escrow: {why}\n")),
    ] {
        match rustix::io::write(stream, text.as_bytes()) {
            Ok(_) | Err(_) => {}
        }
    }
    // Without the ends of other threads: the one that is late may hold what these wait for.
    signal_hook::low_level::exit(status)
}

/// Makes a panic of any thread end the process with the status that denies a call.
pub(super) fn deny_on_panic() {
    std::panic::set_hook(Box::new(|panic| {
        stop(&format!("internal error: {panic}"), 2);
    }));
}
