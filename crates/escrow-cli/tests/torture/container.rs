//! Containers: worlds over which an overlay file system is mounted, so that the originals lie in its lower layer; every verb
//! killed at its calls and met by errors.

use escrow_testkit::namespace::own_mounts;

use crate::kills::{commits, recovers, undos};
use crate::*;

/// An overlay file system over a world, with its upper layer beside that.
#[derive(Debug)]
pub(crate) struct Overlaid {
    at: PathBuf,
    _upper: World,
}

impl Overlaid {
    /// Mounts it where the thread is that began the sweep: all threads have to see it. Hard links stay what they are by `index`.
    pub(crate) fn over(at: &Path) -> Self {
        let upper = World::new();
        let layers = [at.to_owned(), upper.dir("upper"), upper.dir("work")];
        let [lower, above, work] = layers.map(|path| path.display().to_string());
        let options = format!("index=on,lowerdir={lower},upperdir={above},workdir={work}");
        let mut mount = Command::new("mount");
        mount
            .args(["-t", "overlay", "none", "-o", &options])
            .arg(at);
        let mounted = mount.status().expect("there is a mount");
        assert!(mounted.success(), "cannot mount with {options}");
        Self {
            at: at.to_owned(),
            _upper: upper,
        }
    }
}

impl Drop for Overlaid {
    fn drop(&mut self) {
        let mut ended = Command::new("umount");
        // The world says what is left.
        drop(ended.args(["--lazy", "--"]).arg(&self.at).status());
    }
}

/// Commit, undo and recover.
pub(crate) fn faults(form: Form) -> Option<Figures> {
    if !require_root("overlay mounts") {
        return None;
    }
    own_mounts();
    let scenarios = [Scenario::full(&[Container])];
    let mut points = [commits(&scenarios), undos(&scenarios)].concat();
    if form.is_long() {
        points.extend(recovers(form, &scenarios));
    }
    let errors = errors::at(&points);
    let form = form.part(2);
    let mut figures = form.run(points, 40);
    figures.add(form.run(errors, 10));
    Some(figures)
}

#[test]
fn commits_into_a_container_killed_and_met_by_errors() {
    need!(require_stepper());
    if let Some(figures) = faults(Form::Bounded) {
        figures.settle("commits into a container, killed and met by errors", 45);
    }
}
