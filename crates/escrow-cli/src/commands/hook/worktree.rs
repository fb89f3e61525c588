//! Worktrees of an agent: each is a plan of its own, whose sandbox is the directory that the agent works in.

use escrow::model::PlanState;

use super::Call;
use super::session::{Session, WORKTREE, around, drop_unused, make};
use crate::error::Failure;

/// Makes a sandbox of the project, and prints its path.
pub(super) fn create(call: &Call<'_>) -> Result<(), Failure> {
    let (context, input) = (call.context, call.input);
    let name = input.text("name").or_else(|| input.text("worktree_name"));
    let name = name.unwrap_or(input.session()?).to_lowercase();
    // A name that the client takes for a path is none here.
    let name = name.replace(|c: char| !c.is_ascii_alphanumeric(), "-");
    let name = format!(
        "{}-{WORKTREE}{}",
        call.client.name(),
        name.trim_matches('-')
    );
    let cwd = input.cwd()?;
    // From within a sandbox the project is that of its original.
    let directory = match around(context, &cwd)? {
        Some(view) => Session::of(context, view)?.roots.inside(&cwd),
        None => cwd,
    };
    let view = make(context, (&name, true), &directory, call.ui)?;
    let plan = view.plan.name.clone();
    for one in &view.sandboxes {
        let (name, message) = (&one.resource.name, &one.sandbox.message);
        call.ui.say(&format!("{name}: {message}"));
        super::super::show::warnings(one, call.ui);
    }
    let session = Session::of(context, view)?;
    let nearest = session
        .roots
        .iter()
        .find(|root| directory.starts_with(&root.original));
    let path = nearest.and_then(|root| root.sandbox.as_ref());
    let Some(path) = path else {
        return Err(Failure::failed(format!(
            "the plan {plan} has no path for a worktree"
        )));
    };
    call.ui.say(&format!(
        "the worktree is the plan {plan}: a copy of all files as they lie, ignored ones included; without branches of its own; \
        `escrow diff {plan}` shows its changes, `escrow commit {plan}` brings them back"
    ));
    let path = escrow::model::text::Location::from(path.as_path());
    call.ui.bytes(&[path.as_bytes(), b"\n"].concat());
    match call.ui.lost_output() {
        true => Err(Failure::ended(1)),
        false => Ok(()),
    }
}

/// Removes the plan of a worktree; one that holds changes stays, and is named.
pub(super) fn remove(call: &Call<'_>) -> Result<(), Failure> {
    let Some(path) = call.input.text("worktree_path") else {
        return Err(Failure::failed("the input has no text 'worktree_path'"));
    };
    let found = around(call.context, path.as_ref())?;
    let Some(view) = found.filter(|view| view.plan.state == PlanState::Open) else {
        return Ok(());
    };
    let name = &view.plan.name;
    if !drop_unused(call.context, &view.plan)? {
        call.ui.warn(&format!(
            "the plan {name} holds changes and stays: `escrow commit {name}`, or `escrow cleanup {name}`"
        ));
    }
    Ok(())
}
