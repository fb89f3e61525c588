-- Configurations that the user trusts, by path and content, and the one each plan was made under.
CREATE TABLE trusted_config (
    path       BLOB NOT NULL,
    digest     TEXT NOT NULL,
    content    BLOB NOT NULL,
    trusted_at TEXT NOT NULL,
    PRIMARY KEY (path, digest)
) STRICT;

CREATE TABLE plan_config (
    plan_id TEXT PRIMARY KEY REFERENCES plan (id) ON DELETE CASCADE,
    path    BLOB NOT NULL,
    content BLOB NOT NULL,
    named   INTEGER NOT NULL
) STRICT;
