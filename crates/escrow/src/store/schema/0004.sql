-- Checkpoints: one moment of every sandbox of a plan.
CREATE TABLE checkpoint (
    seq        INTEGER PRIMARY KEY AUTOINCREMENT,
    id         TEXT NOT NULL UNIQUE,
    plan_id    TEXT NOT NULL REFERENCES plan (id),
    label      TEXT,
    reason     TEXT,
    created_at TEXT NOT NULL
) STRICT;
CREATE INDEX checkpoint_plan ON checkpoint (plan_id);

CREATE TABLE checkpoint_member (
    checkpoint_id TEXT NOT NULL REFERENCES checkpoint (id) ON DELETE CASCADE,
    sandbox_id    TEXT NOT NULL,
    moment        TEXT NOT NULL,
    PRIMARY KEY (checkpoint_id, sandbox_id)
) STRICT;

-- A return to a checkpoint is journaled as a commit is.
ALTER TABLE journal ADD COLUMN checkpoint TEXT;
