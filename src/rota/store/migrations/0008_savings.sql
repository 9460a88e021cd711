-- What a run that takes several permits is saved up for, when a permit was last used, and the runs that wait for a limit
-- by pool: a look passes over pools without workers in one jump.

CREATE TABLE rota.saving (
  limit_key text PRIMARY KEY,
  shard smallint NOT NULL,
  job_uid bigint NOT NULL,
  scheduled_for timestamptz NOT NULL,
  tenant_id text NOT NULL,
  pool text NOT NULL,
  cost integer NOT NULL CHECK (cost >= 2),
  saves boolean NOT NULL,
  since timestamptz NOT NULL,
  until timestamptz NOT NULL,
  CHECK (since < until)
);
COMMENT ON TABLE rota.saving IS 'The run that is first in turn at a limit and takes more of it than is free.';
COMMENT ON COLUMN rota.saving.saves IS 'Until then what becomes free is kept for its tenant in its pool; else others pass it by until then.';

ALTER TABLE rota.permit ADD COLUMN used_at timestamptz;
COMMENT ON COLUMN rota.permit.used_at IS 'When it was last given to a lease, or made; NULL where no version told.';

CREATE INDEX pending_limit_pool ON rota.pending (limit_key, pool, tenant_id, rank) WITH (deduplicate_items = off)
  WHERE gate = 'limit';
