-- Plans, their sandboxes, the resources, and what was done. Paths are bytes.
CREATE TABLE resource (
    seq        INTEGER PRIMARY KEY AUTOINCREMENT,
    id         TEXT NOT NULL UNIQUE,
    name       TEXT NOT NULL,
    type       TEXT NOT NULL,
    location   BLOB NOT NULL,
    parent     TEXT,
    strategy   TEXT NOT NULL,
    named      INTEGER NOT NULL,
    removed    INTEGER NOT NULL DEFAULT 0,
    created_at TEXT NOT NULL
) STRICT;
CREATE UNIQUE INDEX resource_name ON resource (name) WHERE removed = 0;
CREATE UNIQUE INDEX resource_location ON resource (location, type) WHERE removed = 0;

CREATE TABLE plan (
    seq        INTEGER PRIMARY KEY AUTOINCREMENT,
    id         TEXT NOT NULL UNIQUE,
    name       TEXT NOT NULL,
    state      TEXT NOT NULL,
    directory  BLOB NOT NULL,
    created_at TEXT NOT NULL
) STRICT;
CREATE UNIQUE INDEX plan_name ON plan (name) WHERE state <> 'cleaned_up';

CREATE TABLE sandbox (
    seq         INTEGER PRIMARY KEY AUTOINCREMENT,
    id          TEXT NOT NULL UNIQUE,
    plan_id     TEXT NOT NULL REFERENCES plan (id),
    resource_id TEXT NOT NULL REFERENCES resource (id),
    requested   TEXT NOT NULL,
    strategy    TEXT NOT NULL,
    state       TEXT NOT NULL,
    area        BLOB NOT NULL,
    metadata    TEXT NOT NULL,
    message     TEXT NOT NULL,
    warnings    TEXT NOT NULL,
    reasons     TEXT NOT NULL,
    created_at  TEXT NOT NULL
) STRICT;
-- One sandbox for a plan and a resource (rule P4).
CREATE UNIQUE INDEX sandbox_once ON sandbox (plan_id, resource_id) WHERE state <> 'cleaned_up';

CREATE TABLE operation (
    seq         INTEGER PRIMARY KEY AUTOINCREMENT,
    id          TEXT NOT NULL UNIQUE,
    principal   TEXT NOT NULL,
    action      TEXT NOT NULL,
    plan_id     TEXT,
    target      TEXT NOT NULL,
    outcome     TEXT NOT NULL,
    error       TEXT,
    owner_pid   INTEGER NOT NULL,
    owner_start INTEGER NOT NULL,
    owner_boot  TEXT NOT NULL,
    started_at  TEXT NOT NULL,
    finished_at TEXT
) STRICT;
CREATE INDEX operation_running ON operation (plan_id) WHERE outcome = 'running';

-- What a commit needs to be finished or undone by whoever finds it; written by the commit.
CREATE TABLE journal (
    seq        INTEGER PRIMARY KEY AUTOINCREMENT,
    plan_id    TEXT NOT NULL REFERENCES plan (id),
    entry      TEXT NOT NULL,
    payload    BLOB NOT NULL,
    created_at TEXT NOT NULL
) STRICT;
