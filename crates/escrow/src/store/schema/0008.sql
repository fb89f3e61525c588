-- Beginnings are sealed as ends are, in the order in which operations began: one that somebody put in as
-- unfinished is seen, also after it was ended.
CREATE TABLE beginning (
    position     INTEGER PRIMARY KEY,
    operation_id TEXT NOT NULL UNIQUE,
    hash         BLOB NOT NULL
) STRICT;

CREATE TABLE beginning_head (
    one   INTEGER PRIMARY KEY CHECK (one = 1),
    count INTEGER NOT NULL,
    hash  BLOB NOT NULL
) STRICT;
