-- The log of one plan is found without reading that of all others.
CREATE INDEX operation_plan ON operation (plan_id);
