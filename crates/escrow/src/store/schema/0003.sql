-- The log: what an operation touched, why it was denied, and a chain over all that ended.
ALTER TABLE operation ADD COLUMN resources TEXT NOT NULL DEFAULT '[]';
ALTER TABLE operation ADD COLUMN paths TEXT NOT NULL DEFAULT '[]';
ALTER TABLE operation ADD COLUMN path_count INTEGER NOT NULL DEFAULT 0;
ALTER TABLE operation ADD COLUMN reason TEXT;

-- One seal for each operation that ended, in the order in which they did.
CREATE TABLE seal (
    position     INTEGER PRIMARY KEY,
    operation_id TEXT NOT NULL UNIQUE,
    hash         BLOB NOT NULL
) STRICT;

-- How many seals there are and which is the last: kept apart, so that a missing end is seen.
CREATE TABLE seal_head (
    one   INTEGER PRIMARY KEY CHECK (one = 1),
    count INTEGER NOT NULL,
    hash  BLOB NOT NULL
) STRICT;
