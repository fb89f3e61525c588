//! Configurations that the user trusts, and those that plans were made under.

use jiff::Timestamp;
use rusqlite::{Connection, OptionalExtension, Row, params};

use super::sqlite::{Result, Store, location, parsed};
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

/// The configuration that a plan was made under.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlanConfig {
    /// Where it was.
    pub path: Location,
    /// Its content then.
    pub content: Vec<u8>,
    /// Whether the user named it; otherwise it was found.
    pub named: bool,
}

impl Store {
    /// Notes that a content of a file is trusted, and no other content of it any more.
    pub fn trust_config(&self, config: &TrustedConfig) -> Result<()> {
        self.transact(|connection| {
            connection.execute(
                "DELETE FROM trusted_config WHERE path = ?1",
                [config.path.as_bytes()],
            )?;
            connection.execute(
                "INSERT INTO trusted_config (path, digest, content, trusted_at)
                 VALUES (?1, ?2, ?3, ?4)",
                params![
                    config.path.as_bytes(),
                    config.digest,
                    config.content,
                    config.trusted_at.to_string(),
                ],
            )?;
            Ok(())
        })
    }

    /// Whether a content of a file is trusted.
    pub fn is_trusted_config(&self, path: &Location, digest: &str) -> Result<bool> {
        self.run(|connection| {
            connection.query_row(
                "SELECT EXISTS (SELECT 1 FROM trusted_config WHERE path = ?1 AND digest = ?2)",
                params![path.as_bytes(), digest],
                |row| row.get(0),
            )
        })
    }

    /// Everything that is trusted, the newest first.
    pub fn trusted_configs(&self) -> Result<Vec<TrustedConfig>> {
        self.run(|connection| {
            let mut query = connection.prepare(
                "SELECT path, digest, content, trusted_at FROM trusted_config
                 ORDER BY rowid DESC",
            )?;
            query.query_map([], trusted_row)?.collect()
        })
    }

    /// Forgets every content of a file that is trusted; how many there were.
    pub fn distrust_config(&self, path: &Location) -> Result<usize> {
        self.run(|connection| {
            connection.execute(
                "DELETE FROM trusted_config WHERE path = ?1",
                [path.as_bytes()],
            )
        })
    }

    /// The configuration that a plan was made under.
    pub fn plan_config(&self, plan: PlanId) -> Result<Option<PlanConfig>> {
        self.run(|connection| {
            let mut query = connection.prepare_cached(
                "SELECT path, content, named FROM plan_config WHERE plan_id = ?1",
            )?;
            query
                .query_row([plan.to_string()], |row| {
                    Ok(PlanConfig {
                        path: location(row, 0)?,
                        content: row.get(1)?,
                        named: row.get(2)?,
                    })
                })
                .optional()
        })
    }
}

pub(super) fn bind(
    connection: &Connection,
    plan: PlanId,
    config: &PlanConfig,
) -> rusqlite::Result<()> {
    connection.execute(
        "INSERT INTO plan_config (plan_id, path, content, named) VALUES (?1, ?2, ?3, ?4)",
        params![
            plan.to_string(),
            config.path.as_bytes(),
            config.content,
            config.named,
        ],
    )?;
    Ok(())
}

fn trusted_row(row: &Row<'_>) -> rusqlite::Result<TrustedConfig> {
    Ok(TrustedConfig {
        path: location(row, 0)?,
        digest: row.get(1)?,
        content: row.get(2)?,
        trusted_at: parsed(row, 3)?,
    })
}
