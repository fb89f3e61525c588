//! A program that uses only the library passes every gate: policy, validation, a command inside.

use crate::*;

#[path = "../../../escrow/examples/library.rs"]
mod story;

// rules S6, S7, C1, R1
#[test]
fn the_library_alone_tells_the_whole_story() {
    as_user_too();
    let world = World::under(Path::new("/var/tmp"));
    let directory = world.dir("story");
    story::story(&directory, &binary()).unwrap_or_else(|error| panic!("{error}: {error:?}"));
    assert_quiet(&world);
}
