-- The log is one chain of events: that an operation began, and that it ended. Rows are only ever added. The hash of each
-- covers the one before it. What the tables of the two chains before held is brought over by the program.
CREATE TABLE event (
    position     INTEGER PRIMARY KEY,
    kind         TEXT NOT NULL,
    operation_id TEXT NOT NULL,
    plan_id      TEXT,
    body         TEXT NOT NULL,
    hash         BLOB NOT NULL
) STRICT;
CREATE UNIQUE INDEX event_operation ON event (operation_id, kind);
CREATE INDEX event_plan ON event (plan_id, position) WHERE kind = 'begin';

-- How many events there are and the hash of the last: kept apart, so that a missing end is seen.
CREATE TABLE event_head (
    one   INTEGER PRIMARY KEY CHECK (one = 1),
    count INTEGER NOT NULL,
    hash  BLOB NOT NULL
) STRICT;

-- Operations that have not ended, so that they are found without reading the log.
CREATE TABLE running (
    operation_id TEXT PRIMARY KEY
) STRICT, WITHOUT ROWID;
