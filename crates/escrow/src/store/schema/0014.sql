-- The point of no return has a phase of its own: 'forward'. A rollback is past it from its beginning, and so is a commit of
-- which a step that cannot be taken back was carried out.
UPDATE journal SET phase = 'forward'
WHERE phase = 'decided'
  AND (kind = 'rollback' OR id IN (SELECT journal_id FROM journal_member WHERE carried));
