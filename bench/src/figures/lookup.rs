//! A strategy is found by its name: 1,000 times, of those that come with the engine and of those that a configuration declares.

use std::time::Instant;

use escrow::strategy::ProgramContext;
use escrow::strategy::plugin::{ProgramLaunch, ProgramSpec};
use escrow::strategy::registry::{DeclaredStrategy, Registry};

use crate::bench::Bench;
use crate::report::{Row, Section};

const LOOKUPS: usize = 1000;

/// How many strategies the configuration declares.
const DECLARED: usize = 100;

pub(crate) fn figures(_: &Bench) -> Section {
    let builtin = Registry::builtin();
    let declared: Vec<DeclaredStrategy> = (0..DECLARED).map(declare).collect();
    let custom = builtin.with(&declared, Vec::new(), None, &ProgramContext::default());
    let (known, mut all) = (builtin.names(), custom.names());
    let own = all.split_off(known.len());
    let few = took(&builtin, &known);
    let many = took(&custom, &own);
    let shown = |micros: f64| format!("{micros:.0} µs");
    Section {
        title: "Strategies by name",
        note: format!(
            "{LOOKUPS} lookups in this process, nothing started: of the names that come with the engine, and of {DECLARED} that a \
             configuration declares beside them.\n"
        ),
        rows: vec![Row::counted(
            "1,000 lookups",
            format!("declared: {}", shown(many)),
            format!("built in: {}", shown(few)),
            Some(many / few),
            "< 10 ms",
            Some(many < 10_000.0),
        )],
    }
}

fn declare(number: usize) -> DeclaredStrategy {
    DeclaredStrategy::Program(ProgramSpec {
        name: format!("custom-{number}"),
        launch: ProgramLaunch::Command(vec!["true".to_owned()]),
        directory: "/".into(),
        options: Default::default(),
        env: Default::default(),
        limits: Default::default(),
    })
}

/// The best of some rounds, in microseconds.
fn took(registry: &Registry, names: &[String]) -> f64 {
    let round = |_| {
        let started = Instant::now();
        for name in names.iter().cycle().take(LOOKUPS) {
            let found = registry.named(name).expect("it is known");
            assert_eq!(std::hint::black_box(found).name(), name);
        }
        started.elapsed().as_secs_f64() * 1e6
    };
    (0..20).map(round).fold(f64::INFINITY, f64::min)
}
