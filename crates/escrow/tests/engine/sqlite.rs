//! SQLite databases: the contract, and random histories.

use escrow::model::resource::SQLITE;
use escrow::strategy::Registry;
use escrow::strategy::conformance::{SqliteFixture, run};
use escrow_testkit::World;

use crate::sqlite_histories::{history, raced};

// rule P1
#[test]
fn the_strategies_of_databases_keep_the_contract() {
    let world = World::new();
    let registry = Registry::builtin();
    let ours = registry.registrations();
    let ours: Vec<_> = ours.filter(|one| one.types() == [SQLITE]).collect();
    let names: Vec<&str> = ours.iter().map(|one| one.name()).collect();
    assert_eq!(
        names,
        ["snapshot", "filesystem_copy", "transaction_rollback"]
    );
    // The last one needs a program that becomes its holder: it is asked by the tests of the program.
    for one in &ours[..2] {
        for fixture in [
            SqliteFixture::new(world.path()),
            SqliteFixture::with_log(world.path()),
        ] {
            let report = run(&**one.strategy(), &fixture);
            assert!(report.checks.len() > 20, "the promises are asked");
            assert_eq!(report.problems(), Vec::<String>::new());
        }
    }
}

// rule Q2, Q4
#[test]
fn random_histories_of_both_sides_are_merged_as_the_model_and_sqldiff_say() {
    (1..=120).for_each(history);
}

// rule Q2
#[test]
fn what_others_write_meanwhile_is_never_lost() {
    (1..=25).for_each(raced);
}
