//! Settings of a client: what it set for its session stays with it, what it set for a transaction goes with that, and the next client meets
//! neither.

use super::super::connect::PgResult;
use super::super::sql::TIMEOUTS;
use super::backend::{Backend, STATEMENT_TIMEOUT, Settings};
use super::client::{Client, Transaction};

impl Client<'_> {
    /// Reads what a client set for its session, and gives the session that alone: what it set for its transaction goes with that.
    pub(super) fn new_settings(&self, backend: &mut Backend) -> PgResult<Settings> {
        let (set, explicit) = (&self.set, self.transaction == Transaction::Explicit);
        let hidden = set.iter().filter_map(|(name, _)| name.clone());
        let mut hidden: Vec<String> = hidden.filter(|name| name.contains('.')).collect();
        hidden.extend(
            self.settings
                .keys()
                .filter(|name| name.contains('.'))
                .cloned(),
        );
        hidden.sort();
        hidden.dedup();
        let mut found = backend.settings(&hidden)?;
        let all = found.len();
        found.retain(|name, _| !TIMEOUTS.contains(&name.as_str()));
        // It is set anew, and not too short.
        let limited = found.len() < all || found.contains_key(STATEMENT_TIMEOUT);
        let known = |name: &String| found.keys().any(|one| one.eq_ignore_ascii_case(name));
        let mut reset = self.began_with.clone();
        reset.retain(|name, _| !known(name));
        found.extend(reset.clone());
        if set.iter().any(|(_, local)| *local) {
            let named = |name: &String| {
                let session = |(one, local): &(Option<String>, bool)| {
                    !local
                        && one
                            .as_ref()
                            .is_some_and(|one| one.eq_ignore_ascii_case(name))
                };
                explicit && set.iter().any(session)
            };
            found.retain(|name, _| named(name) || self.settings.contains_key(name));
            for (name, value) in &self.settings {
                if !named(name) {
                    found.insert(name.clone(), value.clone());
                }
            }
        }
        let as_found = !limited && reset.is_empty() && set.iter().all(|(_, local)| !local);
        backend.applied = as_found.then(|| found.clone());
        backend.apply(&found)?;
        Ok(found)
    }
}
