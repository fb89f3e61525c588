//! Something empty stands in the place of what is hidden.
//!
//! In the home directory the layer over it has a link, which leads to a link in the private `/dev`, and that one on: for a
//! directory to an empty one, which can be used and is gone with the namespace, for a file to nothing, so that it is absent. The
//! kernel notes when a link was last followed, so it is known afterwards what a command looked for, and nothing has to watch.
//!
//! ```text
//! ~/.config/stripe -> /dev/hidden/.config%stripe -> .own/.config%stripe/
//! ~/.netrc         -> /dev/hidden/.netrc         -> .own/.netrc           (not there)
//! ```
//!
//! Elsewhere something empty is mounted over it.

use std::path::Path;

use rustix::fs::{self, Mode, OFlags};
use rustix::io::Errno;
use rustix::time::{ClockId, clock_gettime};

use super::launcher::StepResult;
use super::mounts::{clone_tree, is_there, make_file, make_point, put, tmpfs};
use super::spec::{HiddenLink, RunSpec, SOCKETS};
use super::supervise::{RunError, at};
use super::{home_entries, sys};
use crate::fs::hide_layer::AgentLayout;
use crate::fs::{Dir, Stamp, hide_layer};
use crate::model::text::Location;
use crate::model::view::Layers;
use crate::model::{EntryKind, ResourcePath};

use rustix::mount::OpenTreeFlags;
use std::ffi::OsStr;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;

/// Where the links of the home directory lead.
const LINKS: &str = "/dev/hidden";

/// What those links lead to, beside them.
const OWN: &str = ".own";

/// How many places are told of a command.
const TOLD: usize = 64;

/// The place of a hidden path of the home directory among those that stand for all of them: one name. `None` for a name that
/// could be read in two ways, or that no directory takes.
pub(crate) fn place_of(path: &Path) -> Option<Vec<u8>> {
    let bytes = path.as_os_str().as_bytes();
    let is_plain = !bytes.contains(&b'%') && bytes.len() <= 255;
    is_plain.then(|| {
        bytes
            .iter()
            .map(|byte| if *byte == b'/' { b'%' } else { *byte })
            .collect()
    })
}

/// The path of the home directory that a place stands for.
fn path_of(place: &[u8]) -> Vec<u8> {
    place
        .iter()
        .map(|byte| if *byte == b'%' { b'/' } else { *byte })
        .collect()
}

/// Makes room for the layer that hides.
pub(crate) fn make_room(layers: &Layers) -> crate::fs::Result<()> {
    hide_layer::make_place(layers.upper.as_path()).map(drop)
}

/// The layers over the home directory with one between that has the links, and what that cannot hide.
pub(super) fn hide_between(
    spec: &RunSpec,
    home: &Location,
    layers: &Layers,
) -> StepResult<(Layers, Vec<Location>)> {
    let links = &spec.covered.links;
    let cleaned = &spec.covered.cleaned;
    if links.is_empty() && cleaned.is_empty() && spec.agent.is_none() {
        return Ok((layers.clone(), Vec::new()));
    }
    let place = hide_layer::place_beside(layers.upper.as_path());
    put(tmpfs("0700", spec.disk)?.as_fd(), &place)?;
    let wanted = links.iter().filter_map(|link| {
        let path = ResourcePath::parse(link.inner.as_bytes()).ok()?;
        Some((
            path,
            [LINKS.as_bytes(), b"/", link.place.as_bytes()].concat(),
        ))
    });
    let wanted: Vec<_> = wanted.collect();
    let cleaned = cleaned.iter().filter_map(|(inner, text)| {
        let path = ResourcePath::parse(inner.as_bytes()).ok()?;
        Some((path, text.as_bytes()))
    });
    let cleaned: Vec<_> = cleaned.collect();
    let failed = |_| at(format!("hide what is private in '{home}'"))(Errno::IO);
    let agent = spec.agent.iter();
    let parsed = |inner: &Location| ResourcePath::parse(inner.as_bytes()).ok();
    let of_agent = AgentLayout {
        // The place of a single file is there: in the home directory below.
        dirs: agent
            .clone()
            .flat_map(|agent| agent.state.iter().filter(|one| one.is_dir))
            .filter_map(|one| parsed(&one.inner))
            .collect(),
        links: agent
            .clone()
            .flat_map(|agent| &agent.links)
            .filter_map(|(inner, target)| Some((parsed(inner)?, target.as_bytes())))
            .collect(),
        files: agent
            .flat_map(|agent| &agent.given)
            .filter_map(|(inner, text)| Some((parsed(inner)?, text.as_bytes())))
            .collect(),
    };
    let without =
        hide_layer::lay(&place, home.as_path(), (&wanted, &cleaned), &of_agent).map_err(failed)?;
    let without = without
        .iter()
        .map(|inner| Location::from(home.as_path().join(OsStr::from_bytes(inner.as_bytes()))));
    let mut layers = layers.clone();
    layers.below.insert(0, Location::from(place));
    Ok((layers, without.collect()))
}

/// Makes what the links in the home directory lead to.
pub(super) fn stand_for(links: &[HiddenLink]) -> StepResult<()> {
    if links.is_empty() {
        return Ok(());
    }
    let (here, step) = (Path::new(LINKS), || {
        "make places for what is hidden".to_owned()
    });
    fs::mkdir(here, Mode::from_raw_mode(0o755)).map_err(at(step()))?;
    fs::mkdir(here.join(OWN), Mode::from_raw_mode(0o755)).map_err(at(step()))?;
    for HiddenLink {
        path,
        place,
        is_dir,
        ..
    } in links
    {
        let step = || format!("hide '{path}'");
        let own = Path::new(OWN).join(place.as_path());
        if *is_dir {
            fs::mkdir(here.join(&own), Mode::RWXU).map_err(at(step()))?;
        }
        fs::symlink(&own, here.join(place.as_path())).map_err(at(step()))?;
    }
    Ok(())
}

/// The time that the kernel writes to files now: behind the clock by up to a tick.
pub(super) fn file_time() -> Stamp {
    let now = clock_gettime(ClockId::RealtimeCoarse);
    Stamp {
        sec: now.tv_sec,
        nsec: u32::try_from(now.tv_nsec).unwrap_or_default(),
    }
}

/// What hidden places of the home directory were looked for since a command began; none that programs look for unasked.
pub(super) fn looked_for(spec: &RunSpec, since: Stamp) -> Vec<Location> {
    let (Some(home), Ok(dir)) = (&spec.home, Dir::open(Path::new(LINKS))) else {
        return Vec::new();
    };
    let mut found = Vec::new();
    for (name, kind) in dir.kinds().unwrap_or_default() {
        let path = path_of(&name);
        if kind != Some(EntryKind::Symlink) || home_entries::is_unasked(&path) {
            continue;
        }
        // Made at the same moment as it was last followed, it never was.
        if let Ok(Some(meta)) = dir.stat(&name)
            && meta.atime != meta.mtime
            && meta.atime >= since
        {
            found.push(Location::from(
                home.as_path().join(OsStr::from_bytes(&path)),
            ));
        }
    }
    found.sort();
    found.truncate(TOLD);
    found
}

/// Puts something empty in the place of each: a directory of its own, which is gone with the namespace, or a file that
/// cannot be written. What it is decides what is there now: a layer over it may show something else than the machine has.
pub(super) fn cover(paths: &[Location]) -> StepResult<()> {
    let empty = Path::new(SOCKETS).join("empty");
    for (number, path) in paths.iter().enumerate() {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let Ok(there) = fs::open(path.as_path(), flags, Mode::empty()) else {
            continue;
        };
        let stat = fs::fstat(&there).map_err(at(format!("look at '{path}'")))?;
        let mask = match fs::FileType::from_raw_mode(stat.st_mode) {
            // It leads to something that can be seen.
            fs::FileType::Symlink => continue,
            fs::FileType::Directory => {
                let own = empty.join(number.to_string());
                make_point(&own)?;
                fs::chmod(&own, Mode::RWXU).map_err(at(format!("hide '{path}'")))?;
                clone_tree(&own, OpenTreeFlags::empty())?
            }
            _ => {
                let (name, content) = mask_of(path.as_path());
                let file = empty.join(name);
                if !is_there(&file) {
                    make_file(&file)?;
                    let written = fs::open(&file, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())
                        .and_then(|file| rustix::io::write(file, content));
                    written.map_err(at(format!("hide '{path}'")))?;
                }
                let mask = clone_tree(&file, OpenTreeFlags::empty())?;
                sys::fixed(mask.as_fd()).map_err(at(format!("hide '{path}'")))?;
                mask
            }
        };
        match put(mask.as_fd(), path.as_path()) {
            // A socket comes and goes; one that is gone needs no mask.
            Ok(())
            | Err(RunError::Step {
                errno: Errno::NOENT,
                ..
            }) => {}
            Err(RunError::Step { errno, .. }) => return Err(at(format!("hide '{path}'"))(errno)),
            Err(failed) => return Err(failed),
        }
    }
    Ok(())
}

/// What stands in the place of a hidden file: nothing, in a form that the program which reads it takes for nothing.
fn mask_of(path: &Path) -> (&'static str, &'static [u8]) {
    let has = |end: &str| {
        path.extension()
            .is_some_and(|found| found.eq_ignore_ascii_case(end))
    };
    match () {
        () if has("json") => ("json", b"{}\n"),
        () if has("config") => ("config", b"<configuration/>\n"),
        () => ("file", b""),
    }
}
