//! A second round of changes in a sandbox, and what the sandbox must show before and after it.
//!
//! Promise: as in `scenario`, the engine has no part in it. Both states are made by the same edits in a plain directory.

use std::fmt::Write as _;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use crate::layer::Layer;
use crate::scenario;
use crate::*;

/// Makes the second round of changes below `root`, where the first was made.
pub(crate) fn edit(root: &Path, size: Size, label: &str) -> std::io::Result<()> {
    let at = |path: &str| root.join(path);
    write(at("modify.txt"), format!("a third content of {label}\n"));
    fs::remove_file(at("sub/added.txt"))?;
    write(at("later.txt"), added(label));
    let mut touched = vec!["", "modify.txt", "sub", "later.txt"];
    if size == Size::Full {
        fs::remove_dir_all(at("new"))?;
        write(at("gone.txt"), format!("back in {label}\n"));
        chmod(at("mode.txt"), 0o640);
        set_attribute(&at("marked.txt"), "user.colour", b"green");
        set_attribute(&at("dir-mode"), "user.shape", b"flat");
        fs::remove_file(at("link"))?;
        write(at("link"), "a file now\n");
        fs::remove_file(at("pair-c"))?;
        fs::remove_file(at("fresh-b"))?;
        fs::remove_dir_all(at("file-to-dir"))?;
        fs::remove_file(at("dir-to-file"))?;
        fs::create_dir_all(at("dir-to-file/again"))?;
        write(at("dir-to-file/again/in"), "a directory again\n");
        touched.extend([
            "gone.txt",
            "link",
            "dir-to-file",
            "dir-to-file/again",
            "dir-to-file/again/in",
        ]);
    }
    for (number, path) in (0..).zip(&touched) {
        set_time(&at(path), LATER_TIMES + 1000 * number);
    }
    Ok(())
}

const LATER_TIMES: i64 = NEW_TIMES + 1_000_000;

fn added(label: &str) -> String {
    format!("later in {label}\n")
}

/// Makes one file of the second round anew, so that it is not on disk yet. `root` is a copy or a layer.
pub(crate) fn add_again(root: &Path, label: &str) -> std::io::Result<()> {
    let file = root.join("later.txt");
    if file.exists() {
        fs::remove_file(&file)?;
    }
    fs::write(&file, added(label))?;
    set_time(&file, LATER_TIMES + 3000);
    set_time(root, LATER_TIMES);
    Ok(())
}

/// Tells what is seen of a tree, for the process that looks at layers from inside. Which names are one file
/// does not count there: a file of the original that is given another name in a layer parts from its other
/// names.
pub(crate) const LOOK: &str = r"
    find . -type d -printf '%p d %m %T@\n' -o -printf '%p %y %m %s %T@ %l\n' | LC_ALL=C sort
    find . -type f -print0 | LC_ALL=C sort -z | xargs -0 -r sha256sum
    getfattr -R -h -d -m 'user\.' . 2>/dev/null | LC_ALL=C sort";

fn look(root: &Path) -> String {
    output_of(Command::new("sh").args(["-ec", LOOK]).current_dir(root))
}

/// The same of a copy, with everything that can be known of it but where its files have holes, which depends on the file
/// system.
pub(crate) fn text(sig: &Sig) -> String {
    let mut text = String::new();
    for (path, entry) in sig {
        let mut entry = entry.clone();
        entry.data.clear();
        let path = String::from_utf8_lossy(path);
        writeln!(text, "{path}: {entry:?}").expect("writing to a String cannot fail");
    }
    text
}

/// What a sandbox shows after the first round of changes, and after the second.
#[derive(Debug)]
pub(crate) struct States {
    pub(crate) first: String,
    pub(crate) second: String,
}

type Known<T> = LazyLock<Mutex<HashMap<(Size, String, bool), Arc<T>>>>;

/// The states of a member.
pub(crate) fn states(size: Size, label: &str, kind: Kind) -> Arc<States> {
    static KNOWN: Known<States> = LazyLock::new(Mutex::default);
    let layered = kind == Kind::Overlay;
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    let states = known.entry((size, label.to_owned(), layered));
    Arc::clone(states.or_insert_with(|| {
        let world = World::new();
        let root = plain(&world, size, label, layered);
        let seen = || match layered {
            true => look(&root),
            false => text(&signature(&root)),
        };
        let first = seen();
        edit(&root, size, label).expect("edits in a plain directory");
        let second = seen();
        Arc::new(States { first, second })
    }))
}

fn plain(world: &World, size: Size, label: &str, layered: bool) -> PathBuf {
    let root = world.dir("plain");
    scenario::build(&root, size, label);
    let place = match layered {
        true => Where::Layer,
        false => Where::Copy,
    };
    scenario::edit(&root, size, label, place).expect("edits in a plain directory");
    root
}

/// The second round as the kernel leaves it in a layer over the first.
pub(crate) fn layer(size: Size, label: &str) -> Arc<Layer> {
    static KNOWN: Known<Layer> = LazyLock::new(Mutex::default);
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    let layer = known.entry((size, label.to_owned(), true));
    Arc::clone(layer.or_insert_with(|| {
        let world = World::new();
        let lower = plain(&world, size, label, true);
        let (upper, work) = (world.dir("upper"), world.dir("work"));
        let mount = OverlayMount {
            lower: &lower,
            upper: &upper,
            work: &work,
            xattr: XattrKind::User,
        };
        let exe = std::env::current_exe().expect("a test knows itself");
        let word = match size {
            Size::Tiny => "tiny-again",
            Size::Full => "full-again",
        };
        mount.run(&format!(
            "{EDIT}='{word} {label}' exec '{}' --exact subject::edits_when_told_to --nocapture",
            exe.display()
        ));
        Arc::new(Layer::read(&upper))
    }))
}
