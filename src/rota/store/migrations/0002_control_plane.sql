-- The control plane: tenants, tokens, the audit log, keys that make requests repeatable, and what a tenant's own
-- workers need of the hot tables.

-- people and tenants -----------------------------------------------------------------------------------------------

CREATE TABLE rota.tenant (
  tenant_id text PRIMARY KEY,
  max_jobs integer CHECK (max_jobs >= 0),
  max_payload_bytes integer CHECK (max_payload_bytes >= 2),
  calls_per_second double precision CHECK (calls_per_second > 0),
  signing_secret text NOT NULL,
  created_at timestamptz NOT NULL,
  updated_at timestamptz NOT NULL
);
COMMENT ON TABLE rota.tenant IS 'Quotas, where NULL means the installation''s own, and the key that signs calls of HTTP targets.';

CREATE TABLE rota.token (
  token_id text PRIMARY KEY,
  tenant_id text NOT NULL,
  name text NOT NULL,
  scopes text[] NOT NULL CHECK (scopes <@ ARRAY['read', 'jobs:write', 'runs:operate', 'worker', 'admin']),
  secret_hash bytea NOT NULL,
  created_at timestamptz NOT NULL,
  created_by text NOT NULL,
  expires_at timestamptz,
  revoked_at timestamptz,
  last_used_at timestamptz
);
CREATE INDEX token_by_tenant ON rota.token (tenant_id, created_at);
COMMENT ON COLUMN rota.token.tenant_id IS 'Whose rows it sees; * is the operator''s, which sees every tenant''s.';
COMMENT ON COLUMN rota.token.secret_hash IS 'SHA-256 of the secret part, which is random and stored nowhere.';

CREATE TABLE rota.audit (
  tenant_id text NOT NULL,
  at timestamptz NOT NULL,
  audit_id uuid NOT NULL,
  actor text NOT NULL,
  action text NOT NULL,
  subject text NOT NULL,
  before jsonb,
  after jsonb,
  PRIMARY KEY (tenant_id, at, audit_id)
);
CREATE INDEX audit_by_subject ON rota.audit (tenant_id, subject, at, audit_id);
COMMENT ON TABLE rota.audit IS 'Who changed what, and how it stood before and after; written by the change itself.';

-- repeatable requests ----------------------------------------------------------------------------------------------

CREATE TABLE rota.idempotency (
  tenant_id text NOT NULL,
  key text NOT NULL,
  request_hash bytea NOT NULL,
  run_id uuid NOT NULL,
  created_at timestamptz NOT NULL,
  PRIMARY KEY (tenant_id, key)
);
CREATE INDEX idempotency_age ON rota.idempotency (created_at);
COMMENT ON TABLE rota.idempotency IS 'Which run a request with an Idempotency-Key made.';

CREATE TABLE rota.claim (
  tenant_id text NOT NULL,
  worker_id text NOT NULL,
  claim_id uuid NOT NULL,
  tokens uuid[] NOT NULL,
  claimed_at timestamptz NOT NULL,
  PRIMARY KEY (tenant_id, worker_id, claim_id)
);
CREATE INDEX claim_age ON rota.claim (claimed_at);
COMMENT ON TABLE rota.claim IS 'The tokens under which a claim over HTTP took its runs: the same claim asked for again finds them.';

-- jobs and runs ----------------------------------------------------------------------------------------------------

ALTER TABLE rota.job ADD COLUMN resume_at timestamptz;
-- How many jobs a tenant has, counted without reading them.
CREATE INDEX job_of_tenant ON rota.job (tenant_id) WHERE deleted_at IS NULL;
CREATE INDEX job_resume ON rota.job (resume_at) WHERE resume_at IS NOT NULL;
COMMENT ON COLUMN rota.job.resume_at IS 'When a paused job runs again by itself.';

ALTER TABLE rota.run ADD COLUMN result jsonb;
COMMENT ON COLUMN rota.run.result IS 'What the attempt that succeeded returned; bounded.';

-- A tenant's worker claims in its tenant's own order, whatever others have waiting in a pool of the same name.
ALTER TABLE rota.pending ADD COLUMN tenant_id text;
UPDATE rota.pending p SET tenant_id = coalesce(
  (SELECT j.tenant_id FROM rota.job j WHERE j.shard = p.shard AND j.job_uid = p.job_uid), '');
ALTER TABLE rota.pending ALTER COLUMN tenant_id SET NOT NULL;
-- "Open" in other words: who asks in them cannot be led to pending_open, past what all other tenants have waiting.
CREATE INDEX pending_tenant ON rota.pending (tenant_id, pool, rank) WHERE gate BETWEEN 'open' AND 'open';
-- What a worker may open that newly knows a handler, or any: of all tenants, or of its own.
DROP INDEX rota.pending_handler;
CREATE INDEX pending_handler ON rota.pending (pool, handler, tenant_id) WHERE gate = 'handler';
CREATE INDEX pending_any_handler ON rota.pending (pool, tenant_id)
  WHERE gate = 'handler' AND handler NOT IN ('shell', 'http');

ALTER TABLE rota.lease ADD COLUMN cancel_requested_at timestamptz, ADD COLUMN progress real, ADD COLUMN progress_note text;
COMMENT ON COLUMN rota.lease.cancel_requested_at IS 'Somebody wants the run to end: the worker is told at its next renewal.';

DO $$
DECLARE
  part regclass;
BEGIN
  FOR part IN SELECT 'rota.attempt'::regclass UNION ALL
              SELECT inhrelid::regclass FROM pg_inherits WHERE inhparent = 'rota.attempt'::regclass LOOP
    EXECUTE format('ALTER TABLE %s DROP CONSTRAINT IF EXISTS attempt_outcome_check', part);
  END LOOP;
END
$$;
ALTER TABLE rota.attempt ADD CONSTRAINT attempt_outcome_check CHECK (outcome IN
  ('succeeded', 'failed', 'timed_out', 'gave_up', 'snoozed', 'released', 'lost', 'cancelled'));

CREATE FUNCTION rota.handler_key(handler text) RETURNS text
  LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN CASE WHEN handler ~ '^https?://' THEN 'http' ELSE handler END;
COMMENT ON FUNCTION rota.handler_key IS 'What a worker must know to run a handler: its name, or "http" for every HTTP target.';

-- processes --------------------------------------------------------------------------------------------------------

ALTER TABLE rota.worker ADD COLUMN tenant_id text, ADD COLUMN draining_at timestamptz, ADD COLUMN last_claim_at timestamptz;
COMMENT ON COLUMN rota.worker.tenant_id IS 'The one tenant whose runs it takes; NULL: those of all.';
COMMENT ON COLUMN rota.worker.last_claim_at IS 'When a claim last succeeded, with runs or without, or the worker was full.';
ALTER TABLE rota.scheduler ADD COLUMN last_tick_at timestamptz;
COMMENT ON COLUMN rota.scheduler.last_tick_at IS 'When its timer last looked at its shards successfully.';

-- what people read -------------------------------------------------------------------------------------------------

DROP VIEW rota.job_run;
DROP VIEW rota.run_attempt;
-- Ids in the order of their characters, on every server alike: pages are read in that order, and all ids that begin
-- alike lie together.
ALTER TABLE rota.job ALTER COLUMN job_id TYPE text COLLATE "C";

CREATE VIEW rota.job_run AS
SELECT rota.run_id(r.job_uid, r.scheduled_for) AS run_id,
       j.tenant_id, j.job_id, r.scheduled_for, r.shard, r.job_uid,
       coalesce(r.outcome, CASE WHEN l.token IS NOT NULL THEN 'running'
                                WHEN p.gate = 'upstream' THEN 'blocked' ELSE 'pending' END) AS state,
       p.gate, r.origin, coalesce(l.attempt, p.attempt, r.attempt, 0) AS attempt, j.max_attempts,
       j.handler, coalesce(p.pool, j.pool) AS pool, j.priority,
       r.created_at, p.available_at, l.claimed_at AS started_at, l.worker_id, l.expires_at AS lease_expires_at,
       l.cancel_requested_at, l.progress, l.progress_note,
       r.finished_at, r.reason, coalesce(r.payload, j.payload) AS payload, r.result
  FROM rota.run r
  LEFT JOIN rota.job j ON j.shard = r.shard AND j.job_uid = r.job_uid
  LEFT JOIN rota.pending p ON p.shard = r.shard AND p.job_uid = r.job_uid AND p.scheduled_for = r.scheduled_for
  LEFT JOIN rota.lease l ON l.shard = r.shard AND l.job_uid = r.job_uid AND l.scheduled_for = r.scheduled_for;
COMMENT ON VIEW rota.job_run IS 'Runs in the textbook shape. Tokens are shown to nobody but their claimer.';

CREATE VIEW rota.run_attempt AS
SELECT rota.run_id(a.job_uid, a.scheduled_for) AS run_id,
       j.tenant_id, j.job_id, a.scheduled_for, a.shard, a.job_uid,
       a.attempt, a.outcome, a.worker_id, a.claimed_at AS started_at, a.ended_at, a.error
  FROM rota.attempt a
  LEFT JOIN rota.job j ON j.shard = a.shard AND j.job_uid = a.job_uid;
COMMENT ON VIEW rota.run_attempt IS 'Ended attempts in the textbook shape.';
