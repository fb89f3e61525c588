//! Where the configuration is found: named, above the current directory, at home, or nowhere.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use escrow::config::{FILE_NAME, Settings};
use escrow::error::Error;
use escrow::model::text::Location;
use escrow::strategy::Registry;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use crate::context;
use crate::error::Failure;

/// More than anyone writes by hand.
const MOST: u64 = 1024 * 1024;

/// Reads the configuration that counts here; the defaults where there is none.
pub(crate) fn read(typed: Option<&Path>, registry: &Registry) -> Result<Settings, Failure> {
    let named = typed.map(Path::to_owned).or_else(context::named_config);
    let here = context::current_directory();
    let (file, text) = match named {
        Some(file) => {
            let opened = File::open(&file).map_err(|error| unreadable(&file, &error))?;
            let file = match here {
                Some(here) => here.join(file),
                None => file,
            };
            let text = text(&file, opened)?;
            (file, text)
        }
        None => match find(here.as_deref())? {
            Some(found) => found,
            None => return Ok(Settings::default()),
        },
    };
    Ok(Settings::parse(&text, &file, registry).map_err(Error::from)?)
}

/// Checks a configuration by its name, all of it, whatever counts here.
pub(crate) fn check(file: &Path, registry: &Registry) -> Result<Settings, Failure> {
    let opened = File::open(file).map_err(|error| unreadable(file, &error))?;
    let text = text(file, opened)?;
    Ok(Settings::check(&text, file, registry).map_err(Error::from)?)
}

/// The nearest one from here upward, else the user's own.
fn find(here: Option<&Path>) -> Result<Option<(PathBuf, Vec<u8>)>, Failure> {
    let owner = here.and_then(|here| here.metadata().ok());
    let owner = owner.map(|here| here.uid());
    let above = here.into_iter().flat_map(Path::ancestors);
    let above = above.map(|directory| (directory.to_owned(), false));
    let user = context::user_config().map(|config| (config.join("escrow"), true));
    for (directory, own) in above.chain(user) {
        let file = directory.join(FILE_NAME);
        // Whatever stands there, opening it must not wait for anybody.
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
        let opened = match rustix::fs::open(&file, flags, Mode::empty()) {
            Ok(opened) => File::from(opened),
            // A link that leads nowhere was put there: what it led to may have been a policy.
            Err(error @ (Errno::NOENT | Errno::NOTDIR)) => match dangling(&file, own) {
                Some(link) => return Err(lost(&file, &link, &error.into())),
                None => continue,
            },
            // Where one may not look, nothing was put for one to find; one's own is another matter.
            Err(Errno::ACCESS) if !own && file.symlink_metadata().is_err() => continue,
            Err(error) => return Err(unreadable(&file, &error.into())),
        };
        let meta = opened
            .metadata()
            .map_err(|error| unreadable(&file, &error))?;
        if !meta.is_file() {
            return Err(refused(&file, "it is not a file"));
        }
        // Anybody could have put it into a directory above that all can write to.
        let trusted = [0, rustix::process::getuid().as_raw()];
        if !trusted.contains(&meta.uid()) && owner != Some(meta.uid()) {
            let shown = Location::from(file.as_path());
            return Err(refused(&file, "it belongs to another user").hint(format!(
                "`--config '{shown}'` takes it, if you trust who wrote it"
            )));
        }
        let text = text(&file, opened)?;
        return Ok(Some((file, text)));
    }
    Ok(None)
}

/// The link that leads nowhere because of which a file is not found; of one's `own`, also a link on the way
/// to it.
fn dangling(file: &Path, own: bool) -> Option<PathBuf> {
    let way = file.ancestors().take(if own { usize::MAX } else { 1 });
    let leads_nowhere = |path: &&Path| {
        let link = path.symlink_metadata().is_ok_and(|meta| meta.is_symlink());
        link && path.metadata().is_err()
    };
    way.into_iter().find(leads_nowhere).map(Path::to_owned)
}

fn lost(file: &Path, link: &Path, error: &std::io::Error) -> Failure {
    let link = Location::from(link);
    unreadable(file, error).hint(format!(
        "'{link}' is a link that leads nowhere; remove it, or mend it"
    ))
}

fn text(file: &Path, opened: File) -> Result<Vec<u8>, Failure> {
    let mut bytes = Vec::new();
    let read = opened.take(MOST + 1).read_to_end(&mut bytes);
    read.map_err(|error| unreadable(file, &error))?;
    match bytes.len() as u64 > MOST {
        true => Err(refused(file, "it is larger than one MiB")),
        false => Ok(bytes),
    }
}

fn refused(file: &Path, why: &str) -> Failure {
    let file = Location::from(file);
    Failure::usage(format!("cannot use the configuration '{file}': {why}")).status(2)
}

fn unreadable(file: &Path, error: &std::io::Error) -> Failure {
    let file = Location::from(file);
    Failure::usage(format!("cannot read the configuration '{file}': {error}")).status(2)
}
