-- A freeze: no new slots and no starts, of one tenant or everywhere, until it is lifted. Processes of 0.1.0 know nothing of
-- it: they go on until they are upgraded.

CREATE TABLE rota.freeze (
  tenant_id text PRIMARY KEY,
  reason text NOT NULL,
  actor text NOT NULL,
  frozen_at timestamptz NOT NULL,
  lifted_at timestamptz
);
COMMENT ON TABLE rota.freeze IS 'What is frozen; * is everywhere. A lifted one stays until all that it deferred is back.';

ALTER TABLE rota.schedule ADD COLUMN frozen_by text;
CREATE INDEX schedule_frozen ON rota.schedule (frozen_by) WHERE frozen_by IS NOT NULL;
COMMENT ON COLUMN rota.schedule.frozen_by IS 'The freeze that met a slot as it came due: next_run_at is the end of the year 9999 until then.';
