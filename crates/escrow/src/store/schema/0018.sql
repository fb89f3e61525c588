-- A plan that `run` made by itself: a rollback ends it.
ALTER TABLE plan ADD COLUMN implicit INTEGER NOT NULL DEFAULT 0;
-- A commit that was taken back may wait for its plan to be opened again, while others go on.
DROP INDEX journal_once;
CREATE UNIQUE INDEX journal_once ON journal (plan_id)
    WHERE phase NOT IN ('committed', 'taken_back', 'undone');
-- An undo leaves a part of the commit, which can be undone later.
ALTER TABLE journal ADD COLUMN stands INTEGER NOT NULL DEFAULT 0;
