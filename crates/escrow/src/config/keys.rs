//! What each key may say in a found file that the user does not trust.
//!
//! One table, for the code and for `docs/configuration.md`. Each key was asked one question: could the author of
//! a tree gain something by it? What only tightens counts; the rest is ignored, and reported to the caller.

use super::{CustomStrategyConfig, Settings, Validation};
use crate::model::resource::AUTO;
use crate::model::text::Location;
use crate::model::{CachePolicy, CleanupPolicy, Network};
use crate::strategy::Registry;
use crate::strategy::registry::Registration;

/// One row of the table.
pub(super) struct Key {
    /// The key; `NAME` stands for any name.
    pub(super) name: &'static str,
    /// What of it counts without trust.
    counts: &'static str,
    /// What the rest of it would do.
    pub(super) loosens: &'static str,
    /// How it is laid over what outer files say; none where `merge` has its own way.
    pub(super) merge: Option<Merge>,
}

/// How a key of a file is laid over what outer files say. The file's own settings come first.
pub(super) struct Merge {
    /// Whether it only tightens.
    pub(super) tightens: fn(&Settings, &Settings, &Registry) -> bool,
    /// Lets it count.
    pub(super) take: fn(&Settings, &mut Settings),
    /// What it names: in short, and in full.
    pub(super) named: fn(&Settings) -> Vec<(String, String)>,
}

/// A list of paths in `run`, which takes the place of an outer one and tightens where that has all of them.
macro_rules! paths {
    ($list:ident) => {
        Some(Merge {
            tightens: |own, outer, _| {
                let (own, outer) = (&own.run.$list, &outer.run.$list);
                own.iter().all(|one| outer.contains(one))
            },
            take: |own, outer| outer.run.$list.clone_from(&own.run.$list),
            named: |own| {
                let paths = own.run.$list.iter();
                paths
                    .map(|path| twice(Location::from(path.as_path())))
                    .collect()
            },
        })
    };
}

/// The key that no file of a tree may say, trusted or not.
pub(super) const AGENTS: &str = "agents";

/// The table.
pub(super) const KEYS: &[Key] = &[
    Key {
        name: "policy",
        counts: "all of it: every policy must permit, so one more can only deny",
        loosens: "it would permit what another policy denies, which nothing can",
        merge: None,
    },
    Key {
        name: "validate",
        counts: "nothing",
        loosens: "these commands would run",
        merge: Some(Merge {
            tightens: |own, outer, _| own.validate.iter().all(|one| outer.validate.contains(one)),
            take: |own, outer| {
                let known = outer.validate.clone();
                let fresh = own.validate.iter().filter(|one| !known.contains(one));
                outer.validate.extend(fresh.cloned());
            },
            named: |own| {
                let both = |one: &Validation| {
                    let network = match &one.network {
                        Network::None => String::new(),
                        Network::Host => " (with the network)".to_owned(),
                        network => format!(" (with the network {network})"),
                    };
                    let short = format!("{}{network}", one.words.join(" "));
                    (short, format!("{}{network}", line(&one.words)))
                };
                own.validate.iter().map(both).collect()
            },
        }),
    },
    Key {
        name: "diff.ignore",
        counts: "what an outer file has too",
        loosens: "changes of these files would not be shown, nor released",
        merge: Some(Merge {
            tightens: |own, outer, _| own.ignore.iter().all(|one| outer.ignore.contains(one)),
            take: |own, outer| {
                let known = outer.ignore.clone();
                let fresh = own.ignore.iter().filter(|one| !known.contains(one));
                outer.ignore.extend(fresh.cloned());
            },
            named: |own| own.ignore.iter().map(twice).collect(),
        }),
    },
    Key {
        name: AGENTS,
        counts: "nothing, also where the file is trusted: it counts in your own configuration only",
        loosens: "agents would be shown other credentials, and keep other files",
        merge: Some(Merge {
            tightens: |own, _, _| own.agents.is_empty(),
            take: |own, outer| outer.agents.extend(own.agents.clone()),
            named: |own| own.agents.keys().map(twice).collect(),
        }),
    },
    Key {
        name: "run.writable",
        counts: "what an outer file has too",
        loosens: "commands would write these for real",
        merge: paths!(writable),
    },
    Key {
        name: "run.limits",
        counts: "limits that are not wider than those of outer files",
        loosens: "commands could use more",
        merge: Some(Merge {
            tightens: |own, outer, _| {
                let (own, outer) = (&own.run.limits, &outer.run.limits);
                fits(own.memory, outer.memory)
                    && fits(own.pids, outer.pids)
                    && fits(own.cpu, outer.cpu)
                    && fits(own.disk, outer.disk)
                    && fits(own.timeout, outer.timeout)
            },
            take: |own, outer| outer.run.limits = own.run.limits.or(outer.run.limits),
            named: |_| Vec::new(),
        }),
    },
    Key {
        name: "run.hide",
        counts: "all of it: it adds to what outer files hide",
        loosens: "nothing of it loosens",
        merge: Some(Merge {
            tightens: |_, _, _| true,
            take: |own, outer| outer.run.hide.extend(own.run.hide.iter().cloned()),
            named: |_| Vec::new(),
        }),
    },
    Key {
        name: "run.show",
        counts: "what an outer file has too",
        loosens: "commands would see these, although they hold credentials",
        merge: paths!(show),
    },
    Key {
        name: "run.keep",
        counts: "what an outer file has too",
        loosens: "what commands write there would be committed with the project",
        merge: paths!(keep),
    },
    Key {
        name: "run.inject",
        counts: "what an outer file has too",
        loosens: "these credentials of yours would be sent to these hosts",
        merge: Some(Merge {
            tightens: |own, outer, _| {
                let mut all = own.run.inject.iter();
                all.all(|one| outer.run.inject.contains(one))
            },
            take: |own, outer| {
                let new = own.run.inject.iter();
                let new = new.filter(|one| !outer.run.inject.contains(one));
                let new: Vec<_> = new.cloned().collect();
                outer.run.inject.extend(new);
            },
            named: |own| {
                let all = own.run.inject.iter();
                all.map(|one| twice(one.described())).collect()
            },
        }),
    },
    Key {
        name: "run.env.pass",
        counts: "a list of names that outer files pass too",
        loosens: "commands would get these variables of yours, whatever they hold",
        merge: Some(Merge {
            tightens: |own, outer, _| {
                let passed = |one: &String| {
                    let outer = outer.run.pass.as_ref();
                    outer.is_some_and(|outer| outer.contains(one))
                };
                own.run.pass.iter().flatten().all(passed)
            },
            take: |own, outer| outer.run.pass.clone_from(&own.run.pass),
            named: |own| own.run.pass.iter().flatten().map(twice).collect(),
        }),
    },
    Key {
        name: "run.env",
        counts: "what an outer file sets alike",
        loosens: "these variables would be set",
        merge: Some(Merge {
            tightens: |own, outer, _| {
                let mut all = own.run.env.iter();
                all.all(|(name, value)| outer.run.env.get(name) == Some(value))
            },
            take: |own, outer| outer.run.env.extend(own.run.env.clone()),
            named: |own| {
                let both =
                    |(name, value): (&String, &String)| (name.clone(), format!("{name}={value}"));
                own.run.env.iter().map(both).collect()
            },
        }),
    },
    Key {
        name: "run.network",
        counts: "what reaches no more than an outer file permits, or `own` where none says anything: `none` is least, `host` most",
        loosens: "commands would reach more of the network",
        merge: Some(Merge {
            tightens: |own, outer, _| match (&own.run.network, &outer.run.network) {
                (Some(own), Some(outer)) => own.is_within(outer),
                (Some(own), None) => own.is_within(&Network::own()),
                (None, _) => true,
            },
            take: |own, outer| {
                let own = own.run.network.clone();
                outer.run.network = own.or_else(|| outer.run.network.take());
            },
            named: |own| own.run.network.iter().map(twice).collect(),
        }),
    },
    Key {
        name: "run.scratch",
        counts: "`false`; `true` where no outer file says `false`",
        loosens: "the home directory would get a layer that can be written",
        merge: Some(Merge {
            tightens: |own, outer, _| !opens(own.run.scratch, outer.run.scratch),
            take: |own, outer| outer.run.scratch = own.run.scratch.or(outer.run.scratch),
            named: |_| Vec::new(),
        }),
    },
    Key {
        name: "run.allow_userns",
        counts: "`false`",
        loosens: "commands could make user namespaces of their own",
        merge: Some(Merge {
            tightens: |own, outer, _| {
                own.run.userns != Some(true) || outer.run.userns == Some(true)
            },
            take: |own, outer| outer.run.userns = own.run.userns.or(outer.run.userns),
            named: |_| Vec::new(),
        }),
    },
    Key {
        name: "run.caches",
        counts: "`none`; `project` where no outer file says `none`",
        loosens: "commands would use what those of other projects downloaded, or what an outer file keeps from them",
        merge: Some(Merge {
            tightens: |own, outer, _| reach(own.run.caches) <= reach(outer.run.caches),
            take: |own, outer| outer.run.caches = own.run.caches.or(outer.run.caches),
            named: |own| own.run.caches.iter().map(twice).collect(),
        }),
    },
    Key {
        name: "sandbox.strategy",
        counts: "a strategy that isolates",
        loosens: NOT_APART,
        merge: Some(Merge {
            tightens: |own, _, registry| {
                let strategy = own.strategy.as_deref();
                strategy.is_none_or(|strategy| isolates(strategy, registry))
            },
            // `auto` asks the next one.
            take: |own, outer| match own.strategy.as_deref() {
                None | Some(AUTO) => {}
                Some(_) => outer.strategy.clone_from(&own.strategy),
            },
            named: |own| own.strategy.iter().map(twice).collect(),
        }),
    },
    Key {
        name: "sandbox.custom_strategies",
        counts: "nothing",
        loosens: "these programs would run",
        merge: Some(Merge {
            tightens: |own, _, _| own.custom_strategies.is_empty(),
            take: |own, outer| {
                outer
                    .custom_strategies
                    .extend(own.custom_strategies.clone())
            },
            named: |own| {
                let both = |(name, custom): (&String, &CustomStrategyConfig)| {
                    (name.clone(), program(name, custom))
                };
                own.custom_strategies.iter().map(both).collect()
            },
        }),
    },
    Key {
        name: "sandbox.cleanup",
        counts: "what keeps sandboxes at least as long: `manual` longest, then `on_commit`, then `on_terminal`",
        loosens: "sandboxes would be removed earlier",
        merge: Some(Merge {
            tightens: |own, outer, _| lasting(own.cleanup) >= lasting(outer.cleanup),
            take: |own, outer| outer.cleanup = own.cleanup,
            named: |_| Vec::new(),
        }),
    },
    Key {
        name: "sandbox.undo.keep",
        counts: "a time that is at least as long",
        loosens: "a commit could be undone for a shorter time",
        merge: Some(Merge {
            tightens: |own, outer, _| own.undo_keep >= outer.undo_keep,
            take: |own, outer| outer.undo_keep = own.undo_keep,
            named: |_| Vec::new(),
        }),
    },
    Key {
        name: "sandbox.checkpoint.auto",
        counts: "a list that has all of the outer files' list",
        loosens: "some checkpoints would not be taken",
        merge: Some(Merge {
            tightens: |own, outer, _| {
                let own = &own.checkpoint.auto;
                outer.checkpoint.auto.iter().all(|one| own.contains(one))
            },
            take: |own, outer| outer.checkpoint.auto.clone_from(&own.checkpoint.auto),
            named: |_| Vec::new(),
        }),
    },
    Key {
        name: "sandbox.checkpoint.keep",
        counts: "a number that is at least as large",
        loosens: "fewer checkpoints would be kept",
        merge: Some(Merge {
            tightens: |own, outer, _| own.checkpoint.keep >= outer.checkpoint.keep,
            take: |own, outer| outer.checkpoint.keep = own.checkpoint.keep,
            named: |_| Vec::new(),
        }),
    },
    Key {
        name: "resource_types",
        counts: "a type whose name no outer file has",
        loosens: "it would stand for another type of this name",
        merge: None,
    },
    Key {
        name: "resource_types.NAME.sandbox_strategy",
        counts: "a strategy that isolates; otherwise it is `auto`",
        loosens: NOT_APART,
        merge: None,
    },
    Key {
        name: "resource_types.NAME.strategies",
        counts: "strategies that isolate, also for `auto`; the others are left out",
        loosens: NOT_APART,
        merge: None,
    },
    Key {
        name: "resources.NAME",
        counts: "where no policy of an outer file has a rule for a resource by name. Otherwise `NAME` is refused, its \
                 path is used under the name that the path gives it, and only rules of the file itself speak of `NAME`",
        loosens: "a policy has rules for resources by name, and a new name could take a permission or escape a denial",
        merge: None,
    },
    Key {
        name: "resources.NAME.at",
        counts: "a path in the directory of the file; otherwise `NAME` is refused",
        loosens: "it leads out of the directory of the file",
        merge: None,
    },
    Key {
        name: "resources.NAME.options",
        counts: "`base`, which shows no more than what is there",
        loosens: "its strategy would be given these",
        merge: None,
    },
    Key {
        name: "resources.NAME.strategy",
        counts: "a strategy that isolates, also that of its type; otherwise `NAME` is refused, and its path is \
                 sandboxed as any other",
        loosens: NOT_APART,
        merge: None,
    },
];

const NOT_APART: &str = "the strategy does not keep the original apart, or runs a program";

/// The row of a key.
pub(super) fn key(name: &str) -> &'static Key {
    let mut all = KEYS.iter();
    all.find(|key| key.name == name)
        .expect("the table has every key that is asked for")
}

/// The table as `docs/configuration.md` shows it.
pub fn table() -> String {
    let mut table =
        "| key | what counts without trust | why the rest needs trust |\n|---|---|---|\n"
            .to_owned();
    for Key {
        name,
        counts,
        loosens,
        ..
    } in KEYS
    {
        table.push_str(&format!("| `{name}` | {counts} | {loosens} |\n"));
    }
    table
}

/// Whether a strategy keeps the original apart, and is no program that the file names.
pub(super) fn isolates(strategy: &str, registry: &Registry) -> bool {
    let known = registry.named(strategy);
    let apart = |one: &Registration| !one.is_program() && one.strategy().capabilities().isolates;
    strategy == AUTO || known.is_ok_and(apart)
}

/// Whether a file turns on what an outer one turned off.
fn opens(own: Option<bool>, outer: Option<bool>) -> bool {
    own == Some(true) && outer == Some(false)
}

/// Whether a limit is not wider than an outer one.
fn fits<T: PartialOrd>(own: Option<T>, outer: Option<T>) -> bool {
    match (own, outer) {
        (Some(own), Some(outer)) => own <= outer,
        _ => true,
    }
}

/// How many commands share caches, in order.
fn reach(caches: Option<CachePolicy>) -> u8 {
    match caches.unwrap_or_default() {
        CachePolicy::None => 0,
        CachePolicy::Project => 1,
        CachePolicy::Shared => 2,
    }
}

/// How long sandboxes stay, in order.
fn lasting(cleanup: CleanupPolicy) -> u8 {
    match cleanup {
        CleanupPolicy::OnTerminal => 0,
        CleanupPolicy::OnCommit => 1,
        CleanupPolicy::Manual => 2,
    }
}

fn twice(name: impl ToString) -> (String, String) {
    (name.to_string(), name.to_string())
}

/// What a program of the file is, in one line.
fn program(name: &str, custom: &CustomStrategyConfig) -> String {
    match (&custom.command, &custom.module, &custom.class) {
        (Some(words), ..) => format!("{name}: {}", line(words)),
        (None, module, class) => {
            let words = [module, class].map(|one| one.as_deref().unwrap_or_default());
            format!("{name}: {}", words.join(":"))
        }
    }
}

/// The words of a command, quoted where it would not be seen where one ends.
fn line(words: &[String]) -> String {
    let plain = |word: &str| !word.is_empty() && !word.contains([' ', '\'', '"', '\t', '\n']);
    let words = words.iter().map(|word| match plain(word) {
        true => word.clone(),
        false => format!("'{}'", word.replace('\'', "'\\''")),
    });
    words.collect::<Vec<_>>().join(" ")
}
