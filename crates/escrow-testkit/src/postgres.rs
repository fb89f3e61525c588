//! PostgreSQL servers of the tests: each with its own data and a socket in a private directory, run by an ordinary user,
//! ended when dropped. Nothing here knows the engine: what a server holds is asked with `psql`.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::process;
use crate::skip::is_root;
use crate::world::World;

/// How long a server may take to start or to end, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);

/// As whom root runs servers: they take no root, and want a user with an entry in passwd.
const NOBODY: u32 = 65534;

/// The password of the role `app`, which has to say one.
pub const PASSWORD: &str = "s3cret-of-app";

/// A server.
#[derive(Debug)]
pub struct Postgres {
    world: World,
    child: Option<Child>,
    settings: Vec<String>,
    port: u16,
}

/// A program of PostgreSQL: where Debian has it, or on the search path, where Debian has a script that looks for it each time.
pub fn program(name: &str) -> PathBuf {
    let mut places: Vec<PathBuf> = Vec::new();
    if let Ok(versions) = std::fs::read_dir("/usr/lib/postgresql") {
        places.extend(versions.flatten().map(|entry| entry.path().join("bin")));
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    places.extend(std::env::split_paths(&path));
    let found = places
        .iter()
        .map(|place| place.join(name))
        .find(|at| at.is_file());
    found.unwrap_or_else(|| panic!("{name} is not installed; scripts/install-deps.sh installs it"))
}

/// A program of PostgreSQL, run by an ordinary user, that ends with this process.
fn ordinary(name: &str) -> Command {
    let mut command = Command::new("setpriv");
    if is_root() {
        command
            .arg(format!("--reuid={NOBODY}"))
            .arg(format!("--regid={NOBODY}"))
            .arg("--clear-groups");
    }
    command.args(["--pdeathsig=QUIT", "--"]).arg(program(name));
    command.env("HOME", "/nonexistent");
    command
}

impl Postgres {
    /// A server in which transactions can be prepared, or not.
    pub fn start(two_phase: bool) -> Self {
        let world = World::on_disk();
        let data = world.dir("pg");
        if is_root() {
            let own = std::os::unix::fs::chown(&data, Some(NOBODY), Some(NOBODY));
            own.unwrap_or_else(|error| panic!("cannot give {} away: {error}", data.display()));
        }
        let mut init = ordinary("initdb");
        init.args([
            "-N",
            "-A",
            "trust",
            "-U",
            "postgres",
            "-E",
            "UTF8",
            "--locale=C",
            "--no-instructions",
        ]);
        init.arg("-D").arg(data.join("data")).current_dir(&data);
        process::succeed(init);
        // One role has to say a password; all others of the machine are trusted.
        let hba = data.join("data/pg_hba.conf");
        let rules = "local all app scram-sha-256\nlocal all all trust\n";
        std::fs::write(&hba, rules)
            .unwrap_or_else(|error| panic!("cannot write {}: {error}", hba.display()));
        let prepared = if two_phase { 10 } else { 0 };
        let settings = [
            "listen_addresses=".to_owned(),
            format!("max_prepared_transactions={prepared}"),
            "fsync=off".to_owned(),
            "synchronous_commit=off".to_owned(),
            "full_page_writes=off".to_owned(),
            "shared_buffers=16MB".to_owned(),
            "max_connections=30".to_owned(),
            "autovacuum=off".to_owned(),
            "logging_collector=off".to_owned(),
        ];
        let mut this = Self {
            world,
            child: None,
            settings: settings.to_vec(),
            port: 5432,
        };
        this.run();
        this.sql("postgres", "CREATE DATABASE shop");
        // Not as an argument, which other tests would see.
        let role = format!(
            "CREATE ROLE app LOGIN PASSWORD '{PASSWORD}'; GRANT ALL ON DATABASE shop TO app"
        );
        let made = process::run(
            psql_command(&this.url("postgres", "postgres")),
            role.as_bytes(),
        );
        assert!(made.status.success(), "{made:?}");
        this
    }

    /// The number of its process.
    pub fn pid(&self) -> Option<u32> {
        self.child.as_ref().map(Child::id)
    }

    /// The directory of its socket.
    pub fn socket(&self) -> PathBuf {
        self.world.at("pg")
    }

    /// The URL of a database in it.
    pub fn url(&self, user: &str, database: &str) -> String {
        format!(
            "postgresql:///{database}?host={}&user={user}{}",
            self.socket().display(),
            match self.port {
                5432 => String::new(),
                port => format!("&port={port}"),
            }
        )
    }

    /// Has it listen at a port of the loopback too, which it returns, and take encrypted links alone there: with a certificate for
    /// `localhost` that signed itself (`server.crt`), or of a client with the certificate `app` (`client.crt`, `client.key`) for the
    /// role `postgres`. All in the directory of its socket.
    pub fn encrypt(&mut self) -> u16 {
        // What it holds outlives the stop.
        self.sql("postgres", "CHECKPOINT");
        self.stop();
        let dir = self.socket();
        for (name, subject) in [("server", "localhost"), ("client", "postgres")] {
            let mut command = ordinary("openssl");
            command.current_dir(&dir).args([
                "req",
                "-x509",
                "-newkey",
                "ec",
                "-pkeyopt",
                "ec_paramgen_curve:P-256",
                "-nodes",
                "-days",
                "2",
            ]);
            command
                .args(["-addext", "subjectAltName=DNS:localhost"])
                .args(["-subj", &format!("/CN={subject}")])
                .args([
                    "-keyout",
                    &format!("{name}.key"),
                    "-out",
                    &format!("{name}.crt"),
                ]);
            process::succeed(command);
        }
        let free = std::net::TcpListener::bind("127.0.0.1:0").and_then(|one| one.local_addr());
        self.port = free.expect("the loopback has a free port").port();
        let of = |name: &str| dir.join(name).display().to_string();
        self.settings.retain(|one| one != "listen_addresses=");
        self.settings.extend([
            "listen_addresses=127.0.0.1".to_owned(),
            format!("port={}", self.port),
            "ssl=on".to_owned(),
            format!("ssl_cert_file={}", of("server.crt")),
            format!("ssl_key_file={}", of("server.key")),
            format!("ssl_ca_file={}", of("client.crt")),
        ]);
        let hba = dir.join("data/pg_hba.conf");
        let rules = "local all all trust\nhostssl all app 127.0.0.1/32 scram-sha-256\nhostssl all postgres 127.0.0.1/32 cert\n";
        std::fs::write(&hba, rules)
            .unwrap_or_else(|error| panic!("cannot write {}: {error}", hba.display()));
        self.run();
        self.port
    }

    /// Starts it, and waits until it answers.
    pub fn run(&mut self) {
        let mut command = ordinary("postgres");
        command
            .arg("-D")
            .arg(self.world.at("pg/data"))
            .arg("-k")
            .arg(self.socket());
        for setting in &self.settings {
            command.args(["-c", setting]);
        }
        let log = std::fs::File::options()
            .create(true)
            .append(true)
            .open(self.world.at("log"));
        let log = log.unwrap_or_else(|error| panic!("cannot open the log of the server: {error}"));
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log);
        self.child = Some(
            command
                .spawn()
                .unwrap_or_else(|error| panic!("cannot start postgres: {error}")),
        );
        let until = Instant::now() + PATIENCE;
        while self.try_sql("postgres", "SELECT 1").is_err() {
            assert!(
                Instant::now() < until,
                "the server does not start: {}",
                self.log()
            );
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// What it logged.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.world.at("log")).unwrap_or_default()
    }

    /// Ends it at once, as a power cut would.
    pub fn stop(&mut self) {
        let Some(mut child) = self.child.take() else {
            return;
        };
        let pid = rustix::process::Pid::from_child(&child);
        // It may be gone already.
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::QUIT);
        let until = Instant::now() + PATIENCE;
        while child.try_wait().is_ok_and(|ended| ended.is_none()) {
            if Instant::now() > until {
                let _ = child.kill();
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Makes it a server that has counted so many transactions, twice as far in two steps: all rows are frozen in between, as
    /// happens on every server in time.
    pub fn count_to(&mut self, halfway: u32) {
        for next in [
            halfway,
            halfway.checked_mul(2).expect("a number of 32 bits"),
        ] {
            self.sql("postgres", "UPDATE pg_database SET datallowconn = true");
            self.freeze();
            let child = self.child.as_ref().expect("it runs");
            let pid = rustix::process::Pid::from_child(child);
            let asked = rustix::process::kill_process(pid, rustix::process::Signal::INT);
            asked.unwrap_or_else(|error| panic!("cannot end the server: {error}"));
            let ended = self.child.take().expect("it runs").wait();
            assert!(ended.is_ok_and(|status| status.success()), "{}", self.log());
            let data = self.world.at("pg/data");
            let mut reset = ordinary("pg_resetwal");
            reset.arg("-D").arg(&data).args(["-x", &next.to_string()]);
            process::succeed(reset);
            // What became of the transactions there.
            let mut page = ordinary("dd");
            let name = format!("of={}/pg_xact/{:04X}", data.display(), next >> 20);
            page.args(["if=/dev/zero", &name, "bs=262144", "count=1"]);
            process::succeed(page);
            self.run();
        }
        self.freeze();
    }

    fn freeze(&self) {
        for database in self
            .sql("postgres", "SELECT datname FROM pg_database")
            .lines()
        {
            self.sql(database, "VACUUM FREEZE");
        }
    }

    /// Runs SQL in a database as its owner and returns the rows, with columns divided by `|`.
    ///
    /// # Panics
    /// When a statement fails.
    #[track_caller]
    pub fn sql(&self, database: &str, sql: &str) -> String {
        match self.try_sql(database, sql) {
            Ok(rows) => rows,
            Err(error) => panic!("{sql}: {error}\n{}", self.log()),
        }
    }

    /// The same, with what psql says where it fails.
    pub fn try_sql(&self, database: &str, sql: &str) -> Result<String, String> {
        psql(&self.url("postgres", database), sql)
    }

    /// The prepared transactions of all databases.
    pub fn prepared(&self) -> String {
        self.sql("postgres", "SELECT gid FROM pg_prepared_xacts ORDER BY 1")
    }

    /// Whether clients other than this one have no connections to a database, once the server has noticed those that are gone.
    pub fn is_left_alone(&self, database: &str) -> bool {
        let sql = format!(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = '{database}' AND backend_type = 'client backend'"
        );
        self.becomes("postgres", &sql, "0")
    }

    /// Whether a query gives this answer, sooner or later.
    pub fn becomes(&self, database: &str, sql: &str, wanted: &str) -> bool {
        let until = Instant::now() + PATIENCE;
        while self.sql(database, sql) != wanted {
            if Instant::now() > until {
                return false;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        true
    }
}

/// Runs SQL through a URL with an unchanged `psql`.
pub fn psql(url: &str, sql: &str) -> Result<String, String> {
    let mut command = psql_command(url);
    command.args(["-c", sql]);
    let output = process::run(command, b"");
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout)
            .trim_end()
            .to_owned()),
        false => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
    }
}

/// `psql` on a URL: rows alone, without a user's own settings, and the first error ends it.
pub fn psql_command(url: &str) -> Command {
    let mut command = Command::new(program("psql"));
    command.args(["-XAtq", "-v", "ON_ERROR_STOP=1", "-d", url]);
    for name in [
        "PGHOST",
        "PGPORT",
        "PGUSER",
        "PGDATABASE",
        "PGPASSWORD",
        "PGSERVICE",
    ] {
        command.env_remove(name);
    }
    command
}

impl Drop for Postgres {
    fn drop(&mut self) {
        self.stop();
    }
}
