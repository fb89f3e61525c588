-- What is over costs nothing: plans by name and by state, and what belongs to one of them, are found without reading the rest.
CREATE INDEX plan_by_name ON plan (name);
CREATE INDEX plan_by_state ON plan (state);
CREATE INDEX sandbox_plan ON sandbox (plan_id);
CREATE INDEX sandbox_live ON sandbox (resource_id) WHERE state <> 'cleaned_up';
CREATE INDEX journal_plan ON journal (plan_id);
CREATE INDEX journal_phase ON journal (phase);
CREATE INDEX journal_member_sandbox ON journal_member (sandbox_id);
-- Of many checkpoints one, and those that nobody asked for.
CREATE INDEX checkpoint_label ON checkpoint (label);
CREATE INDEX checkpoint_reason ON checkpoint (plan_id, reason);
