//! What the registry takes, and what it remembers.

use std::sync::Arc;

use escrow::strategy::Registry;
use escrow::strategy::registry::{Registration, RegistryError, VERBS};

// rule P2
#[test]
fn a_strategy_that_lacks_verbs_is_refused_with_their_names() {
    let mut registry = Registry::builtin();
    let strategy = Arc::clone(registry.get("filesystem_copy").expect("it is built in"));
    let served = VERBS
        .into_iter()
        .filter(|verb| !verb.contains("checkpoint"));
    let new = Registration::new(strategy).serving(served.map(str::to_owned));
    let refused = registry.register(new).expect_err("it lacks two verbs");
    let missing = ["checkpoint", "restore_checkpoint"].map(str::to_owned);
    assert_eq!(
        refused,
        RegistryError::Incomplete {
            name: "filesystem_copy".to_owned(),
            missing: missing.to_vec(),
        }
    );
    let text = refused.to_string();
    assert!(
        text.ends_with("it lacks checkpoint, restore_checkpoint"),
        "{text}"
    );
}
