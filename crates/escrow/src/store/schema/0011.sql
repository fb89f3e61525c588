-- A plan is made as a whole and removed as a whole. While it is being made ('creating') or removed ('removing'),
-- nothing else can be done with it. Its name is taken from the beginning.
DROP INDEX plan_name;
CREATE UNIQUE INDEX plan_name ON plan (name) WHERE state IN ('creating', 'open');
-- Forks that were never finished.
UPDATE plan SET state = 'creating'
WHERE state = 'open'
  AND id IN (SELECT plan_id FROM sandbox WHERE state = 'pending' AND requested = '(fork)');

-- What an entry is of: a commit, a return to a checkpoint, or a rollback.
ALTER TABLE journal ADD COLUMN kind TEXT NOT NULL DEFAULT 'commit';
UPDATE journal SET kind = 'restore' WHERE checkpoint IS NOT NULL;
