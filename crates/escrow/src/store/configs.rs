//! Configurations that the user trusts, and those that plans were made under.

use jiff::Timestamp;
use rusqlite::{Connection, params};

use super::sqlite::{Result, Store, time};
use crate::model::PlanId;
use crate::model::text::Location;

/// A configuration that the user trusts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TrustedConfig {
    /// Where it is.
    pub path: Location,
    /// The digest of its content.
    pub digest: String,
    /// Its content when it was trusted.
    pub content: Vec<u8>,
    /// When it was trusted.
    pub trusted_at: Timestamp,
}

/// The configuration that a plan was made under, as it was then.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PlanConfig {
    pub(crate) path: Location,
    pub(crate) content: Vec<u8>,
    /// Whether the user named it; otherwise it was found.
    pub(crate) named: bool,
}

impl Store {
    /// Notes that a content of a file is trusted, and no other content of it any more.
    pub(crate) fn trust_config(&self, config: &TrustedConfig) -> Result<()> {
        let (path, at) = (&config.path, config.trusted_at.to_string());
        self.transact(|connection| {
            connection.execute("DELETE FROM trusted_config WHERE path = ?1", [path])?;
            connection.execute(
                "INSERT INTO trusted_config (path, digest, content, trusted_at)
                 VALUES (?1, ?2, ?3, ?4)",
                params![path, config.digest, config.content, at],
            )?;
            Ok(())
        })
    }

    /// Whether a content of a file is trusted.
    pub(crate) fn is_trusted_config(&self, path: &Location, digest: &str) -> Result<bool> {
        let query = "SELECT EXISTS (SELECT 1 FROM trusted_config WHERE path = ?1 AND digest = ?2)";
        self.one(query, params![path, digest])
    }

    /// Everything that is trusted, the newest first.
    pub(crate) fn trusted_configs(&self) -> Result<Vec<TrustedConfig>> {
        let query =
            "SELECT path, digest, content, trusted_at FROM trusted_config ORDER BY rowid DESC";
        self.all(query, &[], |row| {
            Ok(TrustedConfig {
                path: row.get(0)?,
                digest: row.get(1)?,
                content: row.get(2)?,
                trusted_at: time(row, 3)?,
            })
        })
    }

    /// Forgets every content of a file that is trusted; how many there were.
    pub(crate) fn distrust_config(&self, path: &Location) -> Result<usize> {
        self.run(|connection| {
            connection.execute("DELETE FROM trusted_config WHERE path = ?1", [path])
        })
    }

    /// The configuration that a plan was made under.
    pub(crate) fn plan_config(&self, plan: PlanId) -> Result<Option<PlanConfig>> {
        let query = "SELECT path, content, named FROM plan_config WHERE plan_id = ?1";
        let found = self.all(query, params![plan], |row| {
            Ok(PlanConfig {
                path: row.get(0)?,
                content: row.get(1)?,
                named: row.get(2)?,
            })
        })?;
        Ok(found.into_iter().next())
    }
}

pub(super) fn bind(
    connection: &Connection,
    plan: PlanId,
    config: &PlanConfig,
) -> rusqlite::Result<()> {
    let PlanConfig {
        path,
        content,
        named,
    } = config;
    let query = "INSERT INTO plan_config (plan_id, path, content, named) VALUES (?1, ?2, ?3, ?4)";
    connection
        .execute(query, params![plan, path, content, named])
        .map(drop)
}
