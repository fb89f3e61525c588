//! A program that uses only the library passes every gate: policy, validation, a command inside.

use std::path::Path;

use escrow_testkit::World;
use escrow_testkit::user::rerun_test_as_user_with;

use crate::binary;
use crate::running::assert_quiet;

#[path = "../../../escrow/examples/library.rs"]
mod story;

// rules S6, S7, C1, R1
#[test]
fn the_library_alone_tells_the_whole_story() {
    let test = "library::the_library_alone_tells_the_whole_story";
    rerun_test_as_user_with(test, &[&binary()]);
    let world = World::under(Path::new("/var/tmp"));
    let directory = world.dir("story");
    story::story(&directory, &binary()).unwrap_or_else(|error| panic!("{error}: {error:?}"));
    assert_quiet(&world);
}
