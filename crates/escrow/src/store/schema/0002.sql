-- Commits. A name is free again once its plan is over.
DROP INDEX plan_name;
CREATE UNIQUE INDEX plan_name ON plan (name) WHERE state = 'open';

ALTER TABLE operation ADD COLUMN message TEXT;

DROP TABLE journal;

-- One commit of a plan, from its first step until it can no longer be undone.
CREATE TABLE journal (
    seq        INTEGER PRIMARY KEY AUTOINCREMENT,
    id         TEXT NOT NULL UNIQUE,
    plan_id    TEXT NOT NULL REFERENCES plan (id),
    phase      TEXT NOT NULL,
    message    TEXT,
    created_at TEXT NOT NULL
) STRICT;
-- One commit of a plan at a time.
CREATE UNIQUE INDEX journal_once ON journal (plan_id) WHERE phase <> 'undone';

-- What each member of a commit needs to be carried out or taken back, in the order of the commit.
CREATE TABLE journal_member (
    journal_id TEXT NOT NULL REFERENCES journal (id) ON DELETE CASCADE,
    position   INTEGER NOT NULL,
    sandbox_id TEXT NOT NULL,
    area       BLOB NOT NULL,
    intent     TEXT,
    checksum   BLOB,
    carried    INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (journal_id, position)
) STRICT;

-- What we moved away in an original and put back: nobody changed it, although its ctime says so.
CREATE TABLE moved (
    seq         INTEGER PRIMARY KEY AUTOINCREMENT,
    device      INTEGER NOT NULL,
    ino         INTEGER NOT NULL,
    before_sec  INTEGER NOT NULL,
    before_nsec INTEGER NOT NULL,
    after_sec   INTEGER NOT NULL,
    after_nsec  INTEGER NOT NULL
) STRICT;
CREATE INDEX moved_device ON moved (device);
