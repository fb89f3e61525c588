//! Hints: what the user can do next, for each error that leaves a choice.

use super::{Error, Kind};
use crate::model::text::Location;
use crate::model::{Choice, Conflict, JournaledWork, PlanState};
use crate::run::RunError;
use crate::store::{LostRecords, StoreError};
use crate::strategy::StrategyError;
use crate::strategy::plugin::PluginError;
use crate::strategy::registry::RegistryError;

/// What to do where work is lost.
const DO_AGAIN: &str = "what is lost has to be done again in the sandbox; everything else in the sandboxes is still there";

/// What a git checkout cannot do whose history is not as it must be.
const COMMIT_HISTORY: &str = "commit this history";

impl Error {
    /// Whether the same command fails again: the changes of a sandbox went with what failed, or the original does not take them.
    fn is_final(&self) -> bool {
        match self {
            Self::Member { cause, .. } => cause.is_final(),
            Self::WorkLost { .. } => true,
            Self::Strategy(error) => matches!(
                error,
                StrategyError::HolderGone { .. }
                    | StrategyError::TakenBack { .. }
                    | StrategyError::Contradicted { .. }
            ),
            _ => false,
        }
    }

    /// What to do next; words in backquotes can be typed.
    pub fn hints(&self) -> Vec<String> {
        let one = |hint: &str| vec![hint.to_owned()];
        let list = |what: &str, names: &[String]| match names.is_empty() {
            true => Vec::new(),
            false => vec![format!("{what}: {}", names.join(", "))],
        };
        match self {
            Self::Denied { .. } => vec![
                "nothing was changed; another principal may be permitted to do it".into(),
                "`escrow access check` says what is permitted, and why".into(),
            ],
            Self::Untrusted { file, .. } => vec![
                format!("`escrow trust '{file}'` shows what it says, and makes it count"),
                "`--config /dev/null` continues without it".into(),
            ],
            Self::Unvalidated { file, trust, .. } => {
                let trust = trust.iter();
                let mut hints: Vec<String> = trust
                    .map(|trust| {
                        format!("`escrow trust '{trust}'` shows what it says and what changed, and makes it count")
                    })
                    .collect();
                hints.push(format!(
                    "`escrow trust --remove '{file}'` lets commits go on without its `validate`"
                ));
                hints
            }
            Self::Invalid { .. } => {
                one("its output is above; the sandboxes are as they were before it")
            }
            Self::NoConfig => one("name the file: `escrow trust FILE`"),
            Self::UnknownType { known, .. } => list("known types", known),
            Self::UnknownResource { known, .. } => {
                let mut hints = list("known resources", known);
                hints.push("name a resource, or give the path of a directory or a file".into());
                hints
            }
            Self::UnknownPlan { .. } => one("`escrow plan list` shows the plans"),
            Self::AmbiguousPlan { matches, .. } => list("it could be", matches),
            Self::SeveralPlans { plans, .. } => vec![
                format!(
                    "open here: {}",
                    plans.iter().map(|plan| &*plan.name).collect::<Vec<_>>().join(", ")
                ),
                "`escrow status` shows them; in most commands the name comes first, as in `escrow diff NAME`".into(),
            ],
            Self::NoPlanHere { .. } => vec![
                "name a plan; `escrow plan list` shows them".into(),
                "`escrow plan create --resource .` begins one for this directory".into(),
            ],
            Self::NoCommitHere { .. } => one("name a plan; `escrow log` shows what was committed"),
            Self::PlanExists { name } => vec![format!(
                "choose another name; `escrow plan show {name}` shows the plan that has it"
            )],
            Self::PlanOver { plan, state: PlanState::Committed | PlanState::RolledBack } => vec![
                format!("`escrow undo {plan}` opens it again with its changes"),
            ],
            Self::PlanOver { .. } => one("`escrow plan create` begins a new one"),
            Self::ResourceInUse { plan, .. } => {
                vec![format!("`escrow cleanup {plan}` removes its sandboxes")]
            }
            Self::NoSandbox {
                plan,
                resource,
                known,
            } => {
                let mut hints = list("it has sandboxes of", known);
                hints.push(format!(
                    "`escrow sandbox create {plan} {resource}` makes one"
                ));
                hints
            }
            Self::Unfinished { plan, resource } => vec![
                format!("`escrow sandbox create {plan} {resource}` makes it anew"),
                format!("`escrow cleanup {plan}` removes what is there"),
            ],
            Self::HalfMade { .. } => one(
                "`escrow recover` removes what is there; then create it again: nothing was lost",
            ),
            Self::Forward { work: JournaledWork::Commit, failed, unknown, .. } => {
                let mut hints = Vec::new();
                for (resource, at, _) in unknown {
                    hints.push(format!("`escrow recover` asks '{at}' again: run it once that can be reached"));
                    hints.push(format!("only where it cannot tell even then: look whether it holds the changes of the plan, and say so by `escrow recover --outcome {resource}=done`, or `{resource}=not_done`"));
                }
                if !failed.is_empty() {
                    hints.push("`escrow recover` goes on as soon as the cause is gone; nothing is taken back any more, and nothing is lost".into());
                }
                hints
            }
            Self::NotAsked { asked, .. } => match asked.is_empty() {
                true => one("nothing waits for an outcome; `escrow recover` without `--outcome` does what there is to do"),
                false => list("asked for", asked),
            },
            Self::Forward { plan, done, .. } => {
                let mut hints = list("discarded", done);
                hints.push("`escrow recover` discards the rest as soon as the cause is gone; until then the plan cannot be used".into());
                hints.push(format!("`escrow cleanup {plan}` removes all of it"));
                hints
            }
            Self::NotUsable { .. } => {
                one("`escrow rollback` discards its changes and makes it usable again")
            }
            Self::Forgotten { .. } => {
                one("try again; `escrow resource add` gives it a name, and it stays")
            }
            Self::Busy { .. } => one("wait for it to end; `escrow status` shows what runs"),
            Self::Partly {
                what, done, kind, ..
            } => {
                let mut hints = list(what, done);
                if matches!(kind, Kind::Failed | Kind::Busy) {
                    hints.push("nothing is lost; the same command can be run again".into());
                }
                hints
            }
            Self::Away { .. } => vec![
                "bring it back and run the command again".into(),
                "`escrow cleanup --forget` counts it as removed".into(),
            ],
            Self::HalfRemoved { plan } => {
                vec![format!("`escrow recover` or `escrow cleanup {plan}` finishes its removal")]
            }
            Self::Forbidden { .. } => one(
                "`escrow resource add NAME --at DIR --allow-root` takes what is refused for its size",
            ),
            Self::Registry(RegistryError::Unknown { known, .. }) => {
                let mut names = vec!["auto".to_owned()];
                names.extend(known.clone());
                list("known strategies", &names)
            }
            Self::Registry(RegistryError::Untrusted { .. }) => {
                one("`escrow trust` shows what the file would do, and makes it count")
            }
            Self::Registry(RegistryError::Program(error)) => program_hints(error),
            Self::Registry(RegistryError::NotAllowed { allowed, .. }) => {
                list("it takes", allowed)
            }
            Self::UnsupportedType { .. } => one("`escrow type list` shows what is supported"),
            Self::Config(error) => error.hints(),
            Self::Contradicted { other, .. } => vec![
                "let the configuration say the same, or give the resource another name there".into(),
                format!("`escrow resource remove {other}` forgets the one that is known, once no plan uses it"),
            ],
            Self::LeftBehind { first, .. } => {
                let mut hints = first.hints();
                hints.push("`escrow cleanup` removes what is left".into());
                hints
            }
            Self::WorkLost { .. } => one(DO_AGAIN),
            Self::Conflicts { undo: true, conflicts, .. } => vec![
                "nothing was undone: what the conflicts name was changed since the commit, or cannot be taken back".into(),
                match conflicts.iter().max_by_key(|(_, one)| one.choice) {
                    Some((resource, one)) if one.choice == Choice::Neither => format!(
                        "no option settles '{resource}:{}': change it back in the original, and undo then; what an undo needs is kept until `escrow cleanup`",
                        one.path
                    ),
                    Some((_, one)) if one.choice == Choice::Theirs => {
                        "`escrow undo --on-conflict original` leaves these paths as they are now, and undoes the rest".into()
                    }
                    _ => "`escrow undo --on-conflict original` leaves these paths as they are now, and undoes the rest; `merge` keeps what was changed since in text files; `sandbox` brings the versions from before the commit back, and the plan holds the ones of now".into(),
                },
            ],
            Self::Conflicts { conflicts, merge, .. } => vec![
                "nothing was changed; both versions are where they were".into(),
                match (settling(conflicts), conflicts.iter().max_by_key(|(_, one)| one.choice)) {
                    (Choice::Neither, Some((resource, one))) => format!("no side of '{resource}:{}' can be taken alone: change it in the sandbox or in the original, and commit then", one.path),
                    (Choice::Theirs, Some((resource, one))) => format!("`escrow commit --on-conflict original` keeps the original's versions, without the sandbox's of these paths; `sandbox` does not settle '{resource}:{}'", one.path),
                    (Choice::Ours, Some((resource, one))) => format!("`escrow commit --on-conflict sandbox` takes the sandbox's versions; `original` does not settle '{resource}:{}': change it in the sandbox or in the original where the original's is wanted, and commit then", one.path),
                    _ => {
                        let is_file = |(_, one): &(String, Conflict)| one.ours.is_some() || one.theirs.is_some();
                        let merge = match !merge && conflicts.iter().any(is_file) {
                            true => ", `merge` merges text files line by line",
                            false => "",
                        };
                        format!("`escrow commit --on-conflict sandbox` takes the sandbox's version, `original` keeps the original's{merge}")
                    }
                },
            ],
            Self::Unexpected { plan, .. } => {
                vec![format!("nothing was changed; `escrow diff {plan}` shows what would be committed now, and its digest")]
            }
            Self::Irreversible { .. } => one(
                "`--allow-partial` commits all the same; what was committed then stays if a later one fails",
            ),
            Self::NoSpace { .. } => one("free some space; nothing was changed"),
            Self::NotFinished { .. } => vec![
                "until it is finished, do not write in the sandbox: it may share files with the original".into(),
                "`escrow recover` continues as soon as the cause is gone; nothing is lost".into(),
            ],
            Self::CommitFailed { open: true, lost, .. } if !lost.is_empty() => {
                one("`escrow recover` continues as soon as the cause is gone")
            }
            Self::CommitFailed { open: true, .. } | Self::Unrecorded { .. } => {
                one("`escrow recover` continues as soon as the cause is gone; nothing is lost")
            }
            Self::Undecided { .. } => one("`escrow recover` continues as soon as the cause is gone"),
            Self::CommitFailed { undo: true, .. } => {
                one("what could not be undone is irreversible; everything else is as before")
            }
            Self::CommitFailed { lost, .. } if !lost.is_empty() => one(DO_AGAIN),
            Self::CommitFailed { cause, .. } if cause.is_final() => cause.hints(),
            Self::CommitFailed { cause, .. } => {
                let mut hints = cause.hints();
                hints.push("the sandboxes still hold every change; the same command can be run again".into());
                hints
            }
            Self::Member { resource, cause } if matches!(**cause, Self::Strategy(StrategyError::HolderGone { .. })) => {
                let mut hints = vec![format!("`escrow commit --exclude {resource}:.` commits the others without it")];
                hints.extend(cause.hints());
                hints
            }
            Self::Member { cause, .. } | Self::Snapshot { cause, .. } => cause.hints(),
            Self::Damaged { plan, .. } => vec![
                "nothing was done; restore what was there, then run `escrow recover` or the command again".into(),
                format!("`escrow cleanup {plan} --forget` drops it: the originals stay as they are, and what was staged or kept is listed"),
            ],
            Self::RecoveryNeeded { .. } => one("`escrow recover` finishes it or rolls it back"),
            Self::NothingToUndo { state: PlanState::Open, .. } => {
                one("`escrow rollback` discards what its sandboxes changed")
            }
            Self::Live { .. } => {
                one("wait for it to end (`escrow commit --wait`), or `escrow commit --live`; `escrow status` shows what runs, `escrow plan stop` ends it")
            }
            Self::NoOrphan { .. } => one("`escrow gc --orphans` names what can be removed so; `escrow cleanup PLAN` removes what belongs to a plan"),
            Self::UnknownCheckpoint { .. } => one("`escrow checkpoint list` shows them"),
            Self::BadPattern { .. } => {
                one("a pattern is `PATH-GLOB` or `RESOURCE:PATH-GLOB`, from the top of the resource")
            }
            Self::Unmatched { near, .. } => {
                let near = near.iter().map(|near| format!("did you mean '{near}'?"));
                near.chain(["nothing was changed; `escrow diff --name-status` shows what there is".into()])
                    .collect()
            }
            Self::NothingSelected { .. } => {
                one("nothing was changed; a directory goes only together with everything in it")
            }
            Self::StaleCheckpoint { plan, .. } => vec![
                format!("if a part was committed since, `escrow undo {plan}` takes that back, and the checkpoint can be used again"),
                "`escrow checkpoint list` shows the others".into(),
            ],
            Self::LaterThanCheckpoint { .. } => {
                one("`escrow rollback` discards its changes; `escrow checkpoint create` keeps it from now on")
            }
            Self::CannotReturn { plan, checkpoint, others, .. } => {
                let others: Vec<String> = others.iter().map(|name| format!(" --resource {name}")).collect();
                vec![format!("`escrow restore {plan} {checkpoint}{}` returns the others", others.concat())]
            }
            Self::OtherOptions { .. } => {
                one("leave the option out to join it as it is, or wait until its last command has ended")
            }
            Self::NotEmpty { .. } => one("what is in it could not be seen while a sandbox is there: make an empty one"),
            Self::WritableExecutes { .. } => vec![
                "`--writable-anyway PATH` makes it writable all the same".to_owned(),
                "an agent that Escrow knows keeps its sessions and its login without it (`escrow agent list`)".to_owned(),
            ],
            Self::UnknownAgent { known, .. } => vec![
                format!("the known agents are {}", known.join(", ")),
                "`agents` in your configuration adds one; `--agent none` takes none".to_owned(),
            ],
            Self::NoPresetNetwork => one("name the agent with `--agent NAME`, or the hosts with `--network allow:HOST,…`"),
            Self::AgentFileUnkept { .. } => one("`escrow diff --scratch PLAN` shows it while the plan is open; `escrow agent accept NAME PATH --drop` forgets it"),
            Self::BadAgentHome { .. } => one("name a new or empty directory, or one that was the home of an agent before"),
            Self::AgentFileMoved { .. } => one("`escrow agent diff NAME` shows both versions; make the change by hand, and `escrow agent accept NAME PATH --drop` forgets it"),
            Self::Unwritable { .. } | Self::Unhidable { .. } => one("name a directory, or a file, in it"),
            Self::Run(RunError::NoNetwork { .. }) => vec![
                "`--network host` runs the command in the network of this machine, `--network none` in none".to_owned(),
            ],
            Self::NotPublished { .. } => one("choose another port, as in `--publish 3000:8000`: the command's first"),
            Self::Run(RunError::Step { step, .. }) if step.starts_with("make namespaces") => vec![
                "`sysctl user.max_user_namespaces kernel.unprivileged_userns_clone kernel.apparmor_restrict_unprivileged_userns` shows what forbids them".into(),
                "`escrow doctor` shows which walls this machine has, and what each needs".into(),
            ],
            Self::Run(RunError::Injection { .. }) => one("`run.inject` in the configuration declares it; `escrow run --network none` runs without any"),
            Self::Run(RunError::NoNamespaces { bare, .. }) => {
                let mut hints = vec!["`escrow doctor --fix` shows how to permit user namespaces".into()];
                if *bare {
                    hints.push("`--unconfined` runs the command in the sandbox's own directory, without protection".into());
                }
                hints
            }
            Self::Run(RunError::Step { step, .. }) if !step.starts_with("run '") => {
                one("`escrow doctor` shows which walls this machine has, and what each needs")
            }
            Self::BusyOriginal { .. } => one("wait for it to end; `escrow status` shows what runs"),
            Self::Overlap { other, .. } => vec![format!(
                "the inner one needs the outer one as its parent: `escrow resource add NAME --at … --parent {other}` where '{other}' is the outer one, or `parent:` in escrow.yaml; `escrow init` writes that for databases"
            )],
            Self::Strategy(error) => strategy_hints(error),
            Self::Store(StoreError::Lost { path, lost }) => lost_hints(path, lost),
            Self::Store(error) if error.wants_room() => one(
                "the disk of the state is full (bytes or inodes), and the reserved space is used up: remove something else there, then run the command again",
            ),
            Self::Store(StoreError::Newer { .. }) => {
                one("use the newer version, or another `--home`")
            }
            Self::Store(StoreError::OtherTables { .. }) => {
                one("use the build that made it to commit or clean up its plans, then another `--home`, or move the file away")
            }
            _ => Vec::new(),
        }
    }
}

fn lost_hints(path: &Location, lost: &LostRecords) -> Vec<String> {
    let home = path.as_path().parent().unwrap_or(path.as_path());
    let mut hints = vec![
        "nothing was changed; put the newest `state.db` back, together with its `state.db-wal`, if there is one".into(),
        "`escrow gc --orphans` names the areas, which hold what was not committed; they are ordinary directories".into(),
    ];
    if *lost != LostRecords::Empty {
        let file = Location::from(home.join("generation"));
        hints.push(format!(
            "to continue with the state as it is, remove '{file}': areas that it does not know are then listed, and stay"
        ));
    }
    let home = Location::from(home);
    hints.push(format!(
        "to start anew, move '{home}' away and keep it until you have taken what you need from it"
    ));
    hints
}

/// What a program of the user's own wrote last, and how to look at it.
fn program_hints(error: &PluginError) -> Vec<String> {
    let name = &error.strategy;
    let mut hints: Vec<String> = Vec::new();
    if error.said.len() > 1 {
        hints.push(format!(
            "its last lines on stderr:\n  {}",
            error.said.join("\n  ")
        ));
    }
    hints.push(format!(
        "`escrow strategy check {name}` shows which promises it keeps"
    ));
    hints
}

/// Which version can be taken of all of these.
fn settling(conflicts: &[(String, Conflict)]) -> Choice {
    let choices = conflicts.iter().map(|(_, one)| one.choice);
    choices.fold(Choice::Either, Choice::and)
}

/// Whether a path is that of something in the area of a sandbox, which has its name.
fn is_in_a_sandbox(at: &Location) -> bool {
    let mut parts = at.as_path().components();
    parts.any(|part| part.as_os_str().as_encoded_bytes().starts_with(b"sbx_"))
}

fn strategy_hints(error: &StrategyError) -> Vec<String> {
    let hint = match error {
        StrategyError::Plugin(error) => return program_hints(error),
        StrategyError::NotAFile { kind, .. } if kind == "symbolic link" => {
            "links are never followed; name the file it points to"
        }
        StrategyError::Leaves { .. } => {
            "name the file by a path inside the resource, without links"
        }
        StrategyError::ForgedMark { .. } => "`escrow rollback` discards the sandbox's changes",
        StrategyError::Replaced { .. } => {
            "put the original back where it was, or make a new plan for what is there now"
        }
        StrategyError::Carved { .. } => "name that resource instead",
        StrategyError::NotTaken { .. } => {
            "another client wrote rows that contradict them, or they exchange values that have to be unique at every moment, or change a key that others follow; change that, and try again"
        }
        StrategyError::Contradicted { .. } => {
            "nothing was changed; change it in the sandbox or in the original, and commit then"
        }
        StrategyError::Untold { .. } => "then run `escrow recover`; nothing was changed",
        StrategyError::Moved { .. } => "look at `escrow diff`, and try again",
        StrategyError::Lost { .. } => {
            "nothing was changed; `escrow checkpoint list` shows the others, and `escrow rollback` begins anew from the original as it is now"
        }
        StrategyError::Altered { .. } => {
            "nothing was done; restore the file, or drop the plan with `escrow cleanup --forget`"
        }
        StrategyError::Locked { .. } => "try again once that transaction is over",
        StrategyError::Database { at, .. } if is_in_a_sandbox(at) => {
            "the original is untouched: `escrow restore` returns to a checkpoint, and `escrow rollback` discards what is in the sandboxes of the plan"
        }
        StrategyError::Gone { .. } => {
            "put the original back where it was, and type the same again; `escrow cleanup` gives the plan up with its changes"
        }
        StrategyError::Unsupported { what, .. } if what == COMMIT_HISTORY => {
            "nothing was changed; `escrow restore` goes back to a checkpoint, `escrow diff --patch` prints what changed in the files, `escrow rollback` discards all of it"
        }
        StrategyError::Unsupported { what, .. } if what == "give native tools a path" => {
            "use `escrow read` and `escrow write`, or make the sandbox with `--strategy filesystem_copy`"
        }
        StrategyError::TakenBack { .. } => DO_AGAIN,
        StrategyError::HolderGone { .. } => {
            "`escrow rollback` begins another transaction; it discards the changes of the plan's other resources too, which `escrow diff --resource NAME --patch` prints"
        }
        StrategyError::ClientBusy => "end the client's transaction, or the client, and try again",
        StrategyError::Damaged { .. } => {
            "the original is untouched; `escrow cleanup` removes the sandbox"
        }
        StrategyError::Fs(error)
            if error.is(rustix::io::Errno::ACCESS) && !error.action.contains("create") =>
        {
            let open = format!("`chmod u+rwx '{}'`", error.path);
            return vec![format!("run as its owner, or let its owner use it: {open}")];
        }
        StrategyError::Fs(error) if error.is(rustix::io::Errno::NOSPC) => {
            "free some space: `escrow gc --older-than 0s` removes what is over, also what could still be undone; a sandbox by `overlay` needs room for its changes alone"
        }
        _ => return Vec::new(),
    };
    vec![hint.to_owned()]
}
