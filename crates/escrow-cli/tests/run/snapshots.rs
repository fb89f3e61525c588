//! Snapshots of btrfs as a command inside meets them.

use crate::*;

/// The snapshot is one of the whole subvolume; inside, the directory is there at its path and nothing else of it anywhere.
// rule S3
#[test]
fn a_snapshot_shows_nothing_else_of_its_subvolume() {
    let fs = need!(LoopFs::new(Fs::Btrfs, 192));
    let (world, cli) = furnish(World::under(fs.path()));
    write(world.at("secret-4c1f"), "of another directory\n");
    // With the state on the same file system, and elsewhere: then the area lies beside the original.
    let elsewhere = World::under(Path::new("/var/tmp"));
    let beside = cli.clone().env("ESCROW_HOME", elsewhere.home());
    for cli in [cli, beside] {
        cli.plan("try", ".", "snapshot");
        let outside = cli.ok("path try app");
        let volume = Path::new(outside.trim_end())
            .parent()
            .expect("it lies in a subvolume");
        assert_eq!(read(volume.join("secret-4c1f")), "of another directory\n");
        let script = format!(
            "cat a.txt; echo new > a.txt; cat '{volume}/secret-4c1f'; ls -d '{volume}/app'; \
             find / -xdev -name secret-4c1f 2>/dev/null | grep -v '^{place}/secret-4c1f$'; true",
            volume = volume.display(),
            place = world.path().display(),
        );
        assert_eq!(cli.ok(inside("-q run --plan try", &script)), "one\ntwo\n");
        assert_eq!(read(world.at("app/a.txt")), "one\ntwo\n");
        assert_eq!(cli.ok("diff try --name-status"), "M\ta.txt\n");
        cli.ok("cleanup try --yes");
    }
}
