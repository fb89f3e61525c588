//! The contract of strategies, asked of clones of PostgreSQL databases: a table of notes, each a row that is read and written as JSON.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::rc::Rc;

use escrow::model::resource::POSTGRES;
use escrow::model::{ResourceId, ResourcePath, SystemIdSource};
use escrow::strategy::conformance::{Case, Fixture, run};
use escrow::strategy::{Access, Registry, Target, TargetLocation};
use escrow_testkit::postgres::{Postgres, psql_command};

use crate::*;

/// One database, which each case finds as it should be.
struct Databases {
    server: Rc<Postgres>,
}

const NAME: &str = "notes";

struct Notes {
    server: Rc<Postgres>,
    area: PathBuf,
    world: World,
    commits: Cell<u32>,
}

const FILL: &str = "DROP TABLE IF EXISTS notes; CREATE TABLE notes (id int PRIMARY KEY, body bytea); INSERT INTO notes VALUES ";

impl Fixture for Databases {
    fn fresh(&self) -> Result<Box<dyn Case>, String> {
        self.server
            .sql(NAME, &format!("{FILL} (1, 'one'), (3, 'three')"));
        let world = World::new();
        Ok(Box::new(Notes {
            server: Rc::clone(&self.server),
            area: world.dir("area"),
            world,
            commits: Cell::new(0),
        }))
    }
}

fn path(text: &str) -> ResourcePath {
    ResourcePath::parse(text.as_bytes()).expect("a plain path")
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn bytes(text: &str) -> Result<Vec<u8>, String> {
    let hex = text.strip_prefix("\\x").ok_or("a note has no body")?;
    let byte = |at: usize| u8::from_str_radix(&hex[at..at + 2], 16);
    let all = (0..hex.len()).step_by(2).map(byte);
    all.collect::<Result<_, _>>()
        .map_err(|error| error.to_string())
}

/// The key of a note, from its path.
fn id(path: &ResourcePath) -> String {
    let text = path.to_string();
    text.rsplit('/').next().unwrap_or_default().to_owned()
}

fn put(url: &str, path: &ResourcePath, content: &[u8]) -> Result<(), String> {
    let sql = format!(
        "INSERT INTO notes VALUES ({}, '\\x{}') ON CONFLICT (id) DO UPDATE SET body = excluded.body",
        id(path),
        hex(content)
    );
    let mut client = psql_command(url);
    let done = client.args(["-c", &sql]).output();
    let done = done.map_err(|error| error.to_string())?;
    match done.status.success() {
        true => Ok(()),
        false => Err(format!("{done:?}")),
    }
}

impl Notes {
    fn url(&self) -> String {
        self.server.url("postgres", NAME)
    }
}

impl Case for Notes {
    fn target(&self) -> Target {
        Target {
            location: TargetLocation::Url(self.url()),
            ..Target::at(
                ResourceId::new(&SystemIdSource),
                POSTGRES,
                Path::new("notes"),
            )
        }
    }

    fn area(&self) -> Option<&Path> {
        Some(&self.area)
    }

    fn area_entries(&self) -> Result<usize, String> {
        Ok(names(&self.area).len())
    }

    fn commit_area(&self) -> Result<Option<PathBuf>, String> {
        self.commits.set(self.commits.get() + 1);
        Ok(Some(
            self.world.dir(format!("commit-{}", self.commits.get())),
        ))
    }

    fn clear_commit_areas(&self) -> Result<(), String> {
        for number in 1..=self.commits.get() {
            let at = self.world.at(format!("commit-{number}"));
            fs::remove_dir_all(at).map_err(|error| error.to_string())?;
        }
        self.commits.set(0);
        Ok(())
    }

    fn known(&self) -> (ResourcePath, Vec<u8>) {
        (path("notes/1"), b"one".to_vec())
    }

    fn absent(&self) -> Option<ResourcePath> {
        Some(path("notes/2"))
    }

    fn obstacles(&self) -> Vec<ResourcePath> {
        ["nothing", "nothing/1", "notes/1/body"].map(path).to_vec()
    }

    fn fingerprint(&self) -> Result<String, String> {
        let own = "SELECT oid FROM pg_database WHERE datname = current_database()";
        let all = "SELECT ctid, xmin, * FROM notes ORDER BY 1; SELECT count(*) FROM pg_class";
        Ok([own, all].map(|sql| self.server.sql(NAME, sql)).concat())
    }

    fn state(&self) -> Result<BTreeMap<ResourcePath, String>, String> {
        let all = self.contents()?.into_iter();
        Ok(all.map(|(path, body)| (path, hex(&body))).collect())
    }

    fn contents(&self) -> Result<Vec<(ResourcePath, Vec<u8>)>, String> {
        let found = self.server.sql(NAME, "SELECT id, body FROM notes");
        let row = |line: &str| {
            let (id, body) = line.split_once('|').ok_or("a row has two values")?;
            Ok((path(&format!("notes/{id}")), bytes(body)?))
        };
        found.lines().map(row).collect()
    }

    fn replace_original(&self) -> Result<bool, String> {
        self.server
            .sql("postgres", "DROP DATABASE notes WITH (FORCE)");
        self.server.sql("postgres", "CREATE DATABASE notes");
        self.server.sql(NAME, &format!("{FILL} (1, 'another')"));
        Ok(true)
    }

    fn change_original(&self, path: &ResourcePath, content: &[u8]) -> Result<(), String> {
        put(&self.url(), path, content)
    }

    fn work_through(
        &self,
        access: &Access,
        path: &ResourcePath,
        content: &[u8],
    ) -> Result<(), String> {
        put(access.url.as_ref().ok_or("it gives no URL")?, path, content)
    }

    fn encode(&self, path: &ResourcePath, content: &[u8]) -> Vec<u8> {
        let id: u32 = id(path).parse().unwrap_or_default();
        let row = value!({"id": id, "body": format!("\\x{}", hex(content))});
        format!("{row}\n").into_bytes()
    }

    fn decode(&self, content: Vec<u8>) -> Result<Vec<u8>, String> {
        let row: serde_json::Value =
            serde_json::from_slice(&content).map_err(|error| error.to_string())?;
        bytes(row["body"].as_str().ok_or("a note has no body")?)
    }
}

// rule P1, P2, P6, Q8
#[test]
fn clones_keep_the_contract() {
    let server = Rc::new(Postgres::start(true));
    let registry = Registry::builtin();
    registry.host_by(&binary(), &[]);
    server.sql("postgres", "CREATE DATABASE notes");
    let databases = Databases {
        server: Rc::clone(&server),
    };
    let mut ours = registry.registrations();
    let ours = ours.find(|one| one.name() == "snapshot" && one.types() == [POSTGRES]);
    let report = run(&**ours.expect("it is built in").strategy(), &databases);
    assert!(report.checks.len() > 20, "the promises are asked");
    assert_eq!(report.problems(), Vec::<String>::new());
    let left = "SELECT datname FROM pg_database WHERE datname ~ '^escrow'";
    assert_eq!(server.sql("postgres", left), "");
    assert_eq!(
        server.sql("postgres", "SELECT gid FROM pg_prepared_xacts"),
        ""
    );
}
