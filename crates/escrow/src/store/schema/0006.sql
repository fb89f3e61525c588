-- A part of a plan may be committed while the rest stays open: several commits of one plan stand then.
DROP INDEX journal_once;
-- One of them at a time is under way.
CREATE UNIQUE INDEX journal_once ON journal (plan_id) WHERE phase NOT IN ('committed', 'undone');
ALTER TABLE journal ADD COLUMN part INTEGER NOT NULL DEFAULT 0;

-- The commit of a part that stood last when a checkpoint was taken: it is a moment of that state only.
ALTER TABLE checkpoint ADD COLUMN base TEXT;
