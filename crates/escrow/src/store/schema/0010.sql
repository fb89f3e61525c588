-- Which store this is, and how many areas it has recorded. The same is written beside the areas, so that a store
-- that lost records is noticed before anything is taken for an orphan.
CREATE TABLE identity (
    one        INTEGER PRIMARY KEY CHECK (one = 1),
    id         TEXT NOT NULL,
    created_at TEXT NOT NULL,
    generation INTEGER NOT NULL
) STRICT;
INSERT INTO identity (one, id, created_at, generation)
VALUES (1, lower(hex(randomblob(16))), strftime('%Y-%m-%dT%H:%M:%fZ', 'now'), 0);

-- Names of areas, and ids of sandboxes and plans, whose record was removed: what bears one of them on disk is over.
CREATE TABLE over (
    name TEXT PRIMARY KEY
) STRICT, WITHOUT ROWID;
