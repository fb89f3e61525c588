//! The databases of ours on a server: how they are called, made and removed.
//!
//! Each has a name that no other sandbox has, and a comment that says whose it is. Only what has both is ever removed (rule Q8), or what
//! has such a name and no comment yet: who made it was killed. One that has the name of a clone of this sandbox and another comment is an
//! error that names it: it is neither removed nor forgotten. One at a time works on those of one sandbox: a lock of the server
//! waits for what a process that is gone left running there.

use super::super::super::error::{Result, StrategyError};
use super::super::connect::{Connection, PgError, PgResult, literal};
use super::super::content::Texts;
use super::super::location::{self, Server};
use super::super::{Host, failed, major};
use crate::model::{PlanId, ResourceId};
use crate::strategy::sql::identifier;

/// The database with which one connects to work on others.
const ELSEWHERE: &str = "postgres";

/// A clone that was never worked in: the original as it was.
pub(super) const BASE: &str = "base";

/// The clone in which one works.
pub(super) const WORK: &str = "work";

/// With what values are shown alike on every connection.
const OPTIONS: &str = "-c DateStyle=ISO -c IntervalStyle=postgres -c TimeZone=UTC -c extra_float_digits=3 \
                       -c bytea_output=hex -c array_nulls=on -c row_security=off -c check_function_bodies=off -c statement_timeout=0 -c lock_timeout=5000 \
                       -c idle_in_transaction_session_timeout=0";

/// Limits that only newer servers have: a connection waits while a dump is made.
const NO_LIMITS: &str = "SELECT pg_catalog.set_config(name, '0', false) FROM pg_catalog.pg_settings \
                         WHERE name IN ('idle_session_timeout', 'transaction_timeout') AND setting <> '0'";

/// The same for names.
const NAMES: &str = "-c search_path=";

/// The original, and how it is reached.
pub(super) struct Original {
    pub(super) server: Server,
    pub(super) password: Option<String>,
}

/// The clones of one sandbox.
pub(super) struct Databases {
    pub(super) original: Original,
    /// How their names begin.
    prefix: String,
    marker: String,
}

fn refused(what: &str) -> impl Fn(PgError) -> StrategyError + '_ {
    move |error| failed(what, &error)
}

impl Original {
    pub(super) fn new(host: &Host, server: &Server) -> Self {
        Self {
            password: location::password(server, &host.variables),
            server: server.clone(),
        }
    }

    /// A connection to the original.
    pub(super) fn open(&self) -> Result<Connection> {
        self.open_at(&self.server)
    }

    /// A connection to a database of its server.
    pub(super) fn open_at(&self, at: &Server) -> Result<Connection> {
        let opened = self.connect(at, &format!("{OPTIONS} {NAMES}"));
        opened.map_err(refused("be reached"))
    }

    /// A connection to the original in which names are by default what they are for other clients.
    pub(super) fn open_to_write(&self) -> Result<Connection> {
        let opened = self.connect(&self.server, OPTIONS);
        opened.map_err(refused("be reached"))
    }

    fn connect(&self, at: &Server, options: &str) -> PgResult<Connection> {
        let mut connection = Connection::open(at, self.password.as_deref(), options)?;
        connection.query(NO_LIMITS)?;
        Ok(connection)
    }

    /// A connection that only looks at one state of a database.
    pub(super) fn look(&self, at: &Server) -> Result<Connection> {
        let mut connection = self.open_at(at)?;
        let begun = connection.query("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY");
        begun.map_err(refused("be looked at"))?;
        Ok(connection)
    }
}

impl Databases {
    pub(super) fn new(host: &Host, server: &Server, plan: PlanId, resource: ResourceId) -> Self {
        let digest = blake3::hash(format!("{plan} {resource}").as_bytes()).to_hex();
        Self {
            original: Original::new(host, server),
            prefix: format!("escrow_{}_", &digest[..20]),
            marker: format!("escrow: sandbox of plan {plan}, resource {resource}"),
        }
    }

    /// The name of one of them.
    pub(super) fn name(&self, part: &str) -> String {
        format!("{}{part}", self.prefix)
    }

    /// How one is reached.
    pub(super) fn at(&self, part: &str) -> Server {
        Server {
            database: self.name(part),
            ..self.original.server.clone()
        }
    }

    /// A connection that only looks at one state of one of them.
    pub(super) fn look(&self, part: &str) -> Result<Connection> {
        self.original.look(&self.at(part))
    }

    /// A connection that works on the databases of this sandbox, alone; not to the original, where that can be.
    pub(super) fn admin(&self) -> Result<Connection> {
        let elsewhere = Server {
            database: ELSEWHERE.to_owned(),
            ..self.original.server.clone()
        };
        let options = format!("{OPTIONS} {NAMES}");
        let lock = format!(
            "SELECT pg_catalog.pg_advisory_lock(pg_catalog.hashtextextended({}, 0))",
            literal(&self.prefix)
        );
        let original = &self.original;
        let opened = original.connect(&elsewhere, &options);
        opened
            .or_else(|_| original.connect(&original.server, &options))
            .and_then(|mut connection| {
                connection.query("SET lock_timeout = 0")?;
                connection.query(&lock)?;
                Ok(connection)
            })
            .map_err(refused("be cloned"))
    }

    /// Makes one of them as another database is, to which no client is connected; what was there goes.
    pub(super) fn copy(&self, admin: &mut Connection, from: &str, to: &str) -> Result<()> {
        self.drop(admin, to)?;
        let (name, from_name) = (identifier(&self.name(to)), identifier(from));
        let sql = format!("CREATE DATABASE {name} TEMPLATE {from_name}");
        let made = match clones_files(admin) {
            // The file system may not have it.
            Ok(true) => admin
                .query(&format!("{sql} STRATEGY FILE_COPY"))
                .or_else(|_| admin.query(&sql)),
            _ => admin.query(&sql),
        };
        made.and_then(|_| self.mark(admin, to)).map_err(|error| {
            let who = match error.is("55006") {
                true => connected(admin, from).unwrap_or_default(),
                false => String::new(),
            };
            let message = format!("{}{who}", error.message);
            failed("be cloned", &PgError { message, ..error })
        })
    }

    /// Makes an empty one with the language and the encoding of the original.
    pub(super) fn create_empty(&self, admin: &mut Connection, part: &str) -> Result<()> {
        self.drop(admin, part)?;
        let sql = format!(
            "SELECT pg_catalog.pg_encoding_to_char(d.encoding), d.datcollate, d.datctype, to_jsonb(d)->>'datlocprovider', \
             coalesce(to_jsonb(d)->>'datlocale', to_jsonb(d)->>'daticulocale') \
             FROM pg_catalog.pg_database d WHERE d.datname = {}",
            literal(&self.original.server.database)
        );
        let make = |admin: &mut Connection| {
            let row = admin.query(&sql)?.into_iter().next().unwrap_or_default();
            let mut values = row
                .into_iter()
                .map(|value| literal(&value.unwrap_or_default()));
            let mut next = || values.next().unwrap_or_default();
            let mut sql = format!(
                "CREATE DATABASE {} TEMPLATE template0 ENCODING {} LC_COLLATE {} LC_CTYPE {}",
                identifier(&self.name(part)),
                next(),
                next(),
                next()
            );
            if next() == "'i'" {
                sql.push_str(&format!(" LOCALE_PROVIDER icu ICU_LOCALE {}", next()));
            }
            admin.query(&sql)?;
            self.mark(admin, part)
        };
        make(admin).map_err(refused("be cloned"))
    }

    /// Says whose it is, and sets for it what is set for the original.
    fn mark(&self, admin: &mut Connection, part: &str) -> PgResult<()> {
        let name = identifier(&self.name(part));
        admin.query(&format!(
            "COMMENT ON DATABASE {name} IS {}",
            literal(&self.marker)
        ))?;
        // Who may not look into the original may not look into it either.
        admin.query(&format!("REVOKE ALL ON DATABASE {name} FROM PUBLIC"))?;
        let sql = format!(
            "SELECT (s.setrole = 0)::text, pg_catalog.unnest(s.setconfig) FROM pg_catalog.pg_db_role_setting s \
             JOIN pg_catalog.pg_database d ON d.oid = s.setdatabase WHERE d.datname = {} AND s.setrole IN \
             (0, (SELECT oid FROM pg_catalog.pg_roles WHERE rolname = current_user)) ORDER BY 1",
            literal(&self.original.server.database)
        );
        for row in admin.query(&sql)? {
            let [of_all, text] = row.map_texts();
            let of = match of_all.as_str() {
                "true" => format!("DATABASE {name}"),
                _ => format!("ROLE CURRENT_USER IN DATABASE {name}"),
            };
            let (setting, value) = text.split_once('=').unwrap_or((&text, ""));
            // A list is kept as it is written in SQL.
            let value = match matches!(setting, "search_path" | "temp_tablespaces")
                || setting.ends_with("_preload_libraries")
            {
                true if !value.is_empty() => value.to_owned(),
                _ => literal(value),
            };
            let setting: Vec<String> = setting.split('.').map(identifier).collect();
            let set = format!("ALTER {of} SET {} TO {value}", setting.join("."));
            match admin.query(&set) {
                // What a superuser set, such as what is logged, this role may not set; but triggers would run that do not run there.
                Err(error)
                    if error.is("42501") && !text.starts_with("session_replication_role=") => {}
                done => drop(done?),
            }
        }
        Ok(())
    }

    /// Removes one of them, if it is there and ours.
    pub(super) fn drop(&self, admin: &mut Connection, part: &str) -> Result<()> {
        let name = self.name(part);
        match self.found(admin)?.into_iter().find(|one| *one == name) {
            Some(name) => self.drop_database(admin, &name),
            None => self.check_marks(admin, &[name]),
        }
    }

    /// Removes all of them but these. Of those that are known by name none may be left; one that cannot be removed keeps no other one
    /// (rule C17).
    pub(super) fn drop_all_but(
        &self,
        admin: &mut Connection,
        keep: &[String],
        known: &[String],
    ) -> Result<()> {
        let mut done = Ok(());
        for name in self.found(admin)? {
            if !keep.contains(&name) {
                done = done.and(self.drop_database(admin, &name));
            }
        }
        done.and_then(|()| self.check_marks(admin, known))
    }

    /// Refuses where a database has one of these names and a comment that is not ours.
    fn check_marks(&self, admin: &mut Connection, names: &[String]) -> Result<()> {
        if names.is_empty() {
            return Ok(());
        }
        let names: Vec<String> = names.iter().map(|name| literal(name)).collect();
        let sql = format!(
            "SELECT datname, pg_catalog.shobj_description(oid, 'pg_database') FROM pg_catalog.pg_database \
             WHERE datname IN ({}) AND pg_catalog.shobj_description(oid, 'pg_database') <> {} ORDER BY 1",
            names.join(", "),
            literal(&self.marker)
        );
        let rows = admin.query(&sql).map_err(refused("list its clones"))?;
        let Some(row) = rows.into_iter().next() else {
            return Ok(());
        };
        let [name, comment] = row.map_texts();
        let text = format!(
            "the database {name} has the name of a clone of this sandbox, but its comment is '{comment}', so it is left alone; if it is the \
             clone, remove it with `DROP DATABASE {}`, otherwise rename it, and try again",
            identifier(&name)
        );
        Err(failed("remove its clone", &PgError::link(text)))
    }

    /// Clients of a clone are clients of the sandbox, which goes; so are transactions that are prepared in it.
    fn drop_database(&self, admin: &mut Connection, name: &str) -> Result<()> {
        let version = admin.parameters.get("server_version");
        let force = match version.is_some_and(|version| major(version) > 12) {
            true => " WITH (FORCE)",
            false => "",
        };
        let prepared = format!(
            "SELECT gid FROM pg_catalog.pg_prepared_xacts WHERE database = {} ORDER BY 1",
            literal(name)
        );
        let prepared = admin
            .query(&prepared)
            .map_err(refused("remove its clone"))?;
        let at = Server {
            database: name.to_owned(),
            ..self.original.server.clone()
        };
        for gid in prepared.into_iter().flatten().flatten() {
            let sql = format!("ROLLBACK PREPARED {}", literal(&gid));
            let ended = self.original.open_at(&at)?.query(&sql);
            ended.map_err(|error| {
                let message = format!(
                    "{}; the transaction {gid} is prepared in the clone {name}: as its owner or a superuser, run `{sql}` there, and try again",
                    error.message
                );
                failed("remove its clone", &PgError { message, ..error })
            })?;
        }
        let sql = format!("DROP DATABASE IF EXISTS {}{force}", identifier(name));
        let dropped = admin.query(&sql).map(drop);
        dropped.map_err(refused("remove its clone"))
    }

    /// Whether one of them is there.
    pub(super) fn has(&self, admin: &mut Connection, part: &str) -> Result<bool> {
        let name = self.name(part);
        Ok(self.found(admin)?.contains(&name))
    }

    /// Those that are there. One of such a name that says it is another's is never ours.
    fn found(&self, admin: &mut Connection) -> Result<Vec<String>> {
        let sql = format!(
            "SELECT datname FROM pg_catalog.pg_database WHERE pg_catalog.left(datname, {}) = {} \
             AND coalesce(pg_catalog.shobj_description(oid, 'pg_database'), {marker}) = {marker}",
            self.prefix.len(),
            literal(&self.prefix),
            marker = literal(&self.marker)
        );
        let rows = admin.query(&sql).map_err(refused("list its clones"))?;
        Ok(rows.into_iter().flatten().flatten().collect())
    }
}

/// Whether the server can share the blocks of files; then it does.
fn clones_files(admin: &mut Connection) -> PgResult<bool> {
    let known = "SELECT 1 FROM pg_catalog.pg_settings WHERE name = 'file_copy_method'";
    if admin.query(known)?.is_empty() {
        return Ok(false);
    }
    admin.query("SET file_copy_method = clone").map(|_| true)
}

/// Who is connected to a database, in words (rule: never ended unasked).
pub(super) fn connected(admin: &mut Connection, database: &str) -> PgResult<String> {
    let sql = format!(
        "SELECT coalesce(nullif(application_name, ''), backend_type) || ' (' || coalesce(usename, '?') || ', process ' || pid || ')' \
         FROM pg_catalog.pg_stat_activity WHERE datname = {} AND pid <> pg_catalog.pg_backend_pid() ORDER BY pid LIMIT 5",
        literal(database)
    );
    let rows = admin.query(&sql)?;
    let who: Vec<String> = rows.into_iter().flatten().flatten().collect();
    Ok(match who.is_empty() {
        true => String::new(),
        false => format!("; connected are: {}", who.join(", ")),
    })
}
