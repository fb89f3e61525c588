//! The launcher: joins the namespaces of a plan, or has them built, and then becomes the parent of the
//! command's monitor. A failure here happens before the command starts, and is reported with the step that
//! failed.
//!
//! Runs in a process of its own with one thread.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;

use rustix::fs::{self, FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{self, MountPropagationFlags};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use rustix::process::{Pid, Signal, WaitOptions, kill_process, set_parent_process_death_signal};
use rustix::thread::{UnshareFlags, move_into_link_name_space};

use super::monitor;
use super::mounts::Mounted;
use super::own_network::{Gateway, Outside};
use super::spec::{BuildLocks, RunSpec};
use super::supervise::{Channel, RunError, at};
use super::{
    Event, Request, copied, idmap, inject, mounts, outgoing, own_network, proxy, renames,
    stand_ins, streams, sys, terminal_size,
};
use crate::failpoints;
use crate::fs::Cause;
use crate::fs::exposure::ExposureMark;
use crate::fs::process::ProcessIdentity;
use crate::model::Network;
use crate::model::view::View;

/// What a step gave, or which one failed.
pub(super) type StepResult<T> = Result<T, RunError>;

/// Builds the namespace that was described and runs the command in it. Never returns. The helper program calls it with
/// the two descriptors that it was given as words.
pub fn enter(spec: i32, channel: i32) -> ! {
    let channel = Channel::new(sys::adopt(channel));
    let status = join_namespace(sys::adopt(spec), &channel)
        .unwrap_or_else(|failed| report_failure(&channel, failed));
    sys::exit(status)
}

/// Without an answer the other side says that the namespace ended too early.
pub(super) fn report_failure(channel: &Channel, failed: RunError) -> i32 {
    let event = match failed {
        RunError::Step { step, errno } => Event::Failed(step, errno.raw_os_error()),
        RunError::NoNetwork { step, errno } => Event::NoNetwork(step, errno.raw_os_error()),
        other => Event::Failed(other.to_string(), Errno::IO.raw_os_error()),
    };
    match channel.send(&event) {
        Ok(()) | Err(_) => 125,
    }
}

fn join_namespace(spec: OwnedFd, channel: &Channel) -> StepResult<i32> {
    let mut spec = read_spec(spec)?;
    // Whatever else is open was not meant for the namespace.
    let build = spec.build.iter();
    let mut kept: Vec<i32> = build.flat_map(|build| [build.live, build.last]).collect();
    kept.extend([spec.share, channel.as_fd().as_raw_fd()]);
    kept.extend(&spec.groups);
    kept.extend(spec.caches.iter().map(|cache| cache.lock));
    kept.extend(spec.agent.iter().map(|agent| agent.lock));
    sys::keep_only(&mut kept, 3).map_err(at("close other descriptors"))?;
    // Held for as long as something of the command may be there.
    let _share = sys::adopt(spec.share);
    let groups: Vec<OwnedFd> = spec
        .groups
        .iter()
        .map(|number| sys::adopt(*number))
        .collect();
    if let Some(copied) = &spec.copied {
        return copied::enter(&spec, copied, &groups, channel);
    }
    let inside = match (&spec.inside, &spec.build) {
        (Some(inside), _) => inside.clone(),
        (None, Some(build)) => {
            let inside = request_build(&spec, *build, channel)?;
            channel
                .send(&Event::Ready(inside.clone()))
                .map_err(at("send to the supervisor"))?;
            // It notes where the namespace is before anything can happen there.
            channel
                .receive::<Request>()
                .map_err(at("receive from the supervisor"))?;
            inside
        }
        (None, None) => return Err(at("find the namespaces")(Errno::INVAL)),
    };
    // A terminal is found by its name outside only.
    let terminal = spec.terminal.then(open_terminal).transpose()?;
    let relays = outgoing::relays(&spec.look.network);
    let mover = join(&mut spec, &inside, channel)?;
    streams::renew_null()?;
    if !spec.look.open {
        answer_questions(&spec, channel)?;
    }
    if let Network::Allow(_) = spec.look.network {
        proxy::offer(&mut spec, channel)?;
        inject::trust(&mut spec)?;
    }
    outgoing::offer(&relays, channel)?;
    let Some(child) = sys::fork().map_err(at("start the command's monitor"))? else {
        let ended = end_with_parent("tie the command to its supervisor");
        let terminal = terminal.as_ref();
        let watch = |()| monitor::watch(&spec, terminal, &groups, mover.as_ref(), channel);
        let ended = ended.and_then(watch);
        sys::exit(ended.unwrap_or_else(|failed| report_failure(channel, failed)));
    };
    drop(mover);
    let status = wait_for(child)?;
    // With the namespace it goes anyway.
    match fs::unlink(spec.socket.as_path()) {
        Ok(()) | Err(_) => {}
    }
    if let Some(bundle) = inject::bundle(&spec) {
        match fs::unlink(bundle.as_path()) {
            Ok(()) | Err(_) => {}
        }
    }
    Ok(status)
}

/// Lets this process end when its parent does.
pub(super) fn end_with_parent(step: &str) -> StepResult<()> {
    set_parent_process_death_signal(Some(Signal::KILL)).map_err(at(step))
}

/// Waits for the end of a child. A process in the namespace that stops it gains nothing.
pub(super) fn wait_for(child: Pid) -> StepResult<i32> {
    loop {
        let changed = sys::wait_any(WaitOptions::empty()).map_err(at("wait for the command"))?;
        let Some((_, status)) = changed.filter(|(pid, _)| *pid == child) else {
            continue;
        };
        let signal = status.terminating_signal().map(|signal| 128 + signal);
        if let Some(status) = status.exit_status().or(signal) {
            return Ok(status);
        }
        match kill_process(child, Signal::CONT) {
            Ok(()) | Err(_) => {}
        }
    }
}

fn read_spec(from: OwnedFd) -> StepResult<RunSpec> {
    let file = std::fs::File::from(from);
    serde_json::from_reader(std::io::BufReader::new(file))
        .map_err(|_| at("read the description of the namespace")(Errno::INVAL))
}

pub(super) fn open_terminal() -> StepResult<OwnedFd> {
    let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
    fs::open(c"/dev/tty", flags, Mode::empty()).map_err(at("open the terminal"))
}

/// A socket inside, and its other end to the supervisor. Bound from inside: whatever those who are
/// there made of its place, it stays inside.
fn answer_questions(spec: &RunSpec, channel: &Channel) -> StepResult<()> {
    let step = || "listen for requests from inside".to_owned();
    let socket = rustix::net::socket_with(
        AddressFamily::UNIX,
        SocketType::STREAM,
        SocketFlags::CLOEXEC,
        None,
    );
    let socket = socket.map_err(at(step()))?;
    let place = SocketAddrUnix::new(spec.socket.as_path()).map_err(at(step()))?;
    let bound = rustix::net::bind(&socket, &place).and_then(|()| rustix::net::listen(&socket, 16));
    bound.map_err(at(step()))?;
    channel
        .send_with(&Event::Listening, socket.as_fd())
        .map_err(at(step()))
}

/// Has the namespaces and mounts made by a process that stays until the last command is gone.
fn request_build(
    spec: &RunSpec,
    build: BuildLocks,
    channel: &Channel,
) -> StepResult<ProcessIdentity> {
    let (event, theirs) = Channel::pair()?;
    if sys::fork().map_err(at("start the reaper"))?.is_none() {
        channel.close_here();
        drop(event);
        let status = guard(spec, build, &theirs);
        sys::exit(status.map_or_else(|failed| report_failure(&theirs, failed), |()| 0));
    }
    drop(theirs);
    // The lock is the reaper's.
    drop((sys::adopt(build.live), sys::adopt(build.last)));
    let (mut process_1, mut ready) = (None, false);
    loop {
        match event
            .receive::<Event>()
            .map_err(at("receive from the reaper"))?
        {
            Some(Event::Built(pid)) => process_1 = Some(pid),
            Some(Event::Started) => ready = true,
            Some(notice @ Event::Notice(_)) => {
                channel
                    .send(&notice)
                    .map_err(at("send to the supervisor"))?;
            }
            Some(Event::Failed(step, errno)) => {
                return Err(at(step)(Errno::from_raw_os_error(errno)));
            }
            Some(Event::NoNetwork(step, errno)) => {
                let errno = Errno::from_raw_os_error(errno);
                return Err(RunError::NoNetwork { step, errno });
            }
            Some(_) => {}
            None => return Err(at("build the namespace")(Errno::PIPE)),
        }
        if let (Some(pid), true) = (process_1, ready) {
            // Here its number means what it means outside.
            return process_of(pid);
        }
    }
}

/// Tries everything that a namespace needs of the kernel, in this process, which is of no use afterwards.
pub fn probe() -> StepResult<()> {
    let spec = RunSpec::default();
    make_namespaces(&spec)?;
    mounts::make(&spec, None)?;
    let status = match sys::fork().map_err(at("start process 1"))? {
        Some(child) => wait_for(child)?,
        None => sys::exit(i32::from(mounts::fresh_proc().is_err())),
    };
    match status {
        0 => Ok(()),
        _ => Err(at("mount /proc")(Errno::PERM)),
    }
}

/// The reaper: makes the namespaces and their process 1, and ends them when the last command is gone.
/// Until then, also while it ends them, it holds the lock that says that any command is inside.
fn guard(spec: &RunSpec, build: BuildLocks, channel: &Channel) -> StepResult<()> {
    // The lock `live` is never closed: it ends with this process, which is the last.
    let last = sys::adopt(build.last);
    // Its own share would keep it from ever being the last.
    drop(sys::adopt(spec.share));
    let terminal = stand_ins::terminal();
    sys::leave_terminal().map_err(at("detach from the terminal"))?;
    // From outside, where the areas can be seen and written.
    let marks = mark(spec)?;
    let (mounted, child, user) = match build_namespace(spec, terminal.as_deref(), channel) {
        Ok(built) => built,
        // Nothing was ever shown to a command.
        Err(failed) => {
            let marks = marks.into_iter().flatten();
            return match marks
                .map(ExposureMark::take_off)
                .collect::<Result<Vec<()>, _>>()
            {
                Ok(_) | Err(_) => Err(failed),
            };
        }
    };
    let Some(child) = child else {
        let status = begin(build, user, channel);
        sys::exit(status.map_or_else(|failed| report_failure(channel, failed), |()| 0));
    };
    let number = child.as_raw_nonzero().get().unsigned_abs();
    let told = channel.send(&Event::Built(number));
    told.map_err(at("publish the namespace"))?;
    channel.close_here();
    // Every command holds a share of this lock.
    while let Err(errno) = fs::flock(&last, FlockOperation::LockExclusive) {
        if errno != Errno::INTR {
            return Err(at("wait for the last command")(errno));
        }
    }
    match kill_process(child, Signal::KILL) {
        Ok(()) | Err(_) => wait_for(child).map(drop)?,
    }
    mounts::release_caches(spec);
    mounts::remove_places(&mounted);
    close(spec, &mounted.held, marks)
}

/// Makes namespaces, mounts and process 1. Returns the mounts, `None` in process 1, and the user namespace
/// that it goes into if it is root's: all but that is made with the rights that root has outside.
fn build_namespace(
    spec: &RunSpec,
    terminal: Option<&Path>,
    channel: &Channel,
) -> StepResult<(Mounted, Option<Pid>, Option<OwnedFd>)> {
    let walls = !spec.look.open;
    let (user, without) = match walls && rustix::process::geteuid().is_root() {
        true => idmap::every_id().map_or_else(|why| (None, Some(why)), |user| (Some(user), None)),
        false => (None, None),
    };
    let without = without.map(|why| {
        format!(
            "root has no capabilities inside, so files of other users can hardly be used: {why}"
        )
    });
    let (first, gateway) = make_namespaces(spec)?;
    let mut mounted = mounts::make(spec, terminal)?;
    let second = mounted.notice.take();
    for notice in [without, first, second].into_iter().flatten() {
        let told = channel.send(&Event::Notice(notice));
        told.map_err(at("publish the namespace"))?;
    }
    let child = sys::fork().map_err(at("start process 1"))?;
    if let Some(gateway) = gateway.filter(|_| child.is_some()) {
        // There those who join find it.
        let there = move_into_link_name_space(gateway.namespace.as_fd(), None);
        there.map_err(no_network("stay at the gateway"))?;
    }
    Ok((mounted, child, user))
}

/// Marks the sandboxes that are about to be shown to a command.
pub(super) fn mark(spec: &RunSpec) -> StepResult<Vec<Option<ExposureMark>>> {
    let marks = spec.views.iter().map(|shown| {
        let set = shown
            .area
            .as_ref()
            .map(|area| ExposureMark::set(area.as_path()));
        set.transpose().map_err(|error| {
            let errno = match error.cause {
                Cause::Os(errno) => errno,
                _ => Errno::IO,
            };
            let what = match errno {
                Errno::BUSY => "show the sandbox, in which a command of another home runs, of",
                _ => "note that commands can reach the files of",
            };
            at(format!("{what} '{}'", shown.at))(errno)
        })
    });
    marks.collect()
}

/// Closes the sandboxes when the last command has ended. One of which it is not proven that it is closed keeps its mark:
/// a process outside got a descriptor that can write, or what is shown is no layers.
fn close(spec: &RunSpec, held: &[OwnedFd], marks: Vec<Option<ExposureMark>>) -> StepResult<()> {
    for ((shown, mount), mark) in spec.views.iter().zip(held).zip(marks) {
        // Without a mark it is the original itself.
        let Some(mark) = mark else { continue };
        let layers = matches!(shown.view, View::Layers(_));
        let frozen =
            failpoints::bug("layers-left-open") || mounts::freeze(mount.as_fd(), layers).is_ok();
        if frozen && layers {
            let taken = mark.take_off();
            taken.map_err(|_| at("record that the namespace is empty")(Errno::IO))?;
        }
    }
    Ok(())
}

/// Process 1: holds the namespaces. It ignores the end of children, so the kernel reaps what becomes its child.
fn begin(build: BuildLocks, user: Option<OwnedFd>, channel: &Channel) -> StepResult<()> {
    end_with_parent("tie process 1 to its parent")?;
    mounts::fresh_proc()?;
    if let Some(user) = user {
        let joined = move_into_link_name_space(user.as_fd(), None);
        joined.map_err(at("go into the user namespace"))?;
    }
    // Should the reaper be killed, the namespace is over when this one has ended.
    let mut kept = [build.live, channel.as_fd().as_raw_fd()];
    sys::keep_only(&mut kept, 3).map_err(at("close other descriptors"))?;
    sys::set_signal(libc::SIGCHLD, true);
    let told = channel.send(&Event::Started);
    told.map_err(at("publish the namespace"))?;
    channel.close_here();
    sys::sleep_for_ever()
}

/// The process that has this number now, as seen from outside.
fn process_of(pid: u32) -> StepResult<ProcessIdentity> {
    let gone = || at("look at process 1")(Errno::SRCH);
    ProcessIdentity::of(pid).ok().flatten().ok_or_else(gone)
}

/// The error of a step on the way to a network of the plan's own.
fn no_network(step: &str) -> impl FnOnce(Errno) -> RunError {
    let step = step.to_owned();
    move |errno| RunError::NoNetwork { step, errno }
}

/// Returns what has to be said of them, and the gateway of a network of the plan's own.
fn make_namespaces(spec: &RunSpec) -> StepResult<(Option<String>, Option<Gateway>)> {
    let notice = match rustix::process::geteuid().is_root() {
        true => None,
        false => idmap::enter()?,
    };
    let gateway = match spec.look.network {
        Network::Own(_) => {
            let made = own_network::make_gateway();
            Some(made.map_err(no_network("make a gateway"))?)
        }
        _ => None,
    };
    let mut flags = UnshareFlags::NEWNS | UnshareFlags::NEWPID;
    let own = spec.look.network != Network::Host;
    if own {
        flags |= UnshareFlags::NEWNET;
    }
    let made = match spec.look.open {
        true => sys::unshare(flags),
        false => {
            flags |= UnshareFlags::NEWIPC;
            // A kernel without cgroups has no namespace of them.
            match sys::unshare(flags | UnshareFlags::NEWCGROUP) {
                Err(Errno::INVAL) => sys::unshare(flags),
                made => made,
            }
        }
    };
    made.map_err(at("make namespaces"))?;
    if own {
        sys::raise_loopback().map_err(at("bring the loopback device up"))?;
    }
    if let Some(gateway) = &gateway {
        let connected = own_network::connect(gateway);
        connected.map_err(no_network("join the plan to its gateway"))?;
    }
    let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
    mount::mount_change(c"/", private).map_err(at("make the mounts private"))?;
    Ok((notice, gateway))
}

/// Goes into the namespaces of a plan, and starts the mover on the way: it sees the files inside, and is not seen there.
fn join(
    spec: &mut RunSpec,
    inside: &ProcessIdentity,
    channel: &Channel,
) -> StepResult<Option<Channel>> {
    let open = |whose: &str, name: &str| {
        let path = Path::new("/proc").join(whose).join("ns").join(name);
        fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
    };
    let step = || "join the namespace (it may have just ended)".to_owned();
    // Opened first: once inside, they can no longer be named.
    let mut namespaces = Vec::new();
    for name in ["user", "ipc", "net", "cgroup", "mnt", "pid"] {
        let (own, theirs) = (open("self", name), open(&inside.pid.to_string(), name));
        if name == "cgroup" && matches!(own, Err(Errno::NOENT)) {
            continue;
        }
        let (own, theirs) = (own.map_err(at(step()))?, theirs.map_err(at(step()))?);
        let number = |fd: &OwnedFd| fs::fstat(fd).map(|stat| stat.st_ino);
        // What is shared already cannot, and need not, be joined.
        if number(&own).map_err(at(step()))? != number(&theirs).map_err(at(step()))? {
            namespaces.push((name, theirs));
        }
    }
    let network = match spec.look.network {
        Network::Own(_) => {
            let (theirs, ours) = Channel::pair()?;
            let sent = channel.send_with(&Event::Outgoing, theirs.as_fd());
            sent.map_err(at("send to the supervisor"))?;
            Some(Outside::find(inside.pid, ours).map_err(at(step()))?)
        }
        _ => None,
    };
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let processes = fs::open(c"/proc", flags, Mode::empty()).map_err(at(step()))?;
    // Looked at once they are held: another process may have got the number.
    if process_of(inside.pid)? != *inside {
        return Err(at(step())(Errno::SRCH));
    }
    let go = |namespace: &OwnedFd| move_into_link_name_space(namespace.as_fd(), None);
    // Of root's, the others belong to the one that root comes from.
    let last = match rustix::process::geteuid().is_root() {
        true => namespaces
            .extract_if(.., |(name, _)| *name == "user")
            .next(),
        false => None,
    };
    spec.is_root = last.is_some();
    // Those inside may then make terminals that are in no file system of ours.
    let outside = spec.look.userns.then(terminal_size::outside);
    let mut mover = None;
    for (name, namespace) in &namespaces {
        if *name == "pid" && !spec.look.open {
            let user = || last.as_ref().map_or(Ok(()), |(_, user)| go(user));
            let outside = outside.as_deref();
            mover = renames::start(spec, &processes, outside, network.as_ref(), user)?;
        }
        go(namespace).map_err(at(step()))?;
    }
    last.map_or(Ok(()), |(_, user)| go(&user).map_err(at(step())))?;
    Ok(mover)
}
