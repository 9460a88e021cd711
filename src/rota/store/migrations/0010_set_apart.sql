-- What one run or job cannot have at this moment must not stop the others: it is noted, with the reason, and come back to.
ALTER TABLE rota.lease ADD COLUMN set_apart text;
COMMENT ON COLUMN rota.lease.set_apart IS 'Why its end could not be written when it lapsed; its expiry tells when that is tried again.';

CREATE TABLE rota.pause_wanted (
  shard smallint NOT NULL,
  job_uid bigint NOT NULL,
  noted_at timestamptz NOT NULL,
  PRIMARY KEY (shard, job_uid));
COMMENT ON TABLE rota.pause_wanted IS 'Jobs that are to be paused for their dead letters as soon as nobody has them locked.';

CREATE OR REPLACE VIEW rota.job_run AS
SELECT rota.run_id(r.job_uid, r.scheduled_for) AS run_id, j.tenant_id, j.job_id, r.scheduled_for, r.shard, r.job_uid,
       coalesce(r.outcome, CASE WHEN l.token IS NOT NULL THEN 'running'
                                WHEN p.gate = 'upstream' THEN 'blocked' ELSE 'pending' END) AS state,
       p.gate, r.origin, coalesce(l.attempt, p.attempt, r.attempt, 0) AS attempt, j.max_attempts, j.handler,
       coalesce(p.pool, j.pool) AS pool, coalesce(l.priority, p.priority, j.priority) AS priority, r.created_at,
       p.available_at, p.deadline_at, p.limit_key, coalesce(l.losses, p.losses) AS losses, l.claimed_at AS started_at,
       l.worker_id, l.expires_at AS lease_expires_at, l.cancel_requested_at, l.progress, l.progress_note, r.finished_at,
       coalesce(r.reason, l.set_apart) AS reason, coalesce(r.payload, j.payload) AS payload, r.result
  FROM rota.run r
  LEFT JOIN rota.job j ON j.shard = r.shard AND j.job_uid = r.job_uid
  LEFT JOIN rota.pending p ON p.shard = r.shard AND p.job_uid = r.job_uid AND p.scheduled_for = r.scheduled_for
  LEFT JOIN rota.lease l ON l.shard = r.shard AND l.job_uid = r.job_uid AND l.scheduled_for = r.scheduled_for;

-- The bounds that the program refuses to pass, for whoever writes by SQL: beyond them a lease is no interval, and one job
-- would stop all claims of its pool. What stands there already is left alone.
ALTER TABLE rota.job
  ADD CONSTRAINT job_lease_ms_limit CHECK (lease_ms <= 3600000) NOT VALID,
  ADD CONSTRAINT job_timeout_ms_limit CHECK (timeout_ms <= 604800000) NOT VALID,
  ADD CONSTRAINT job_max_attempts_limit CHECK (max_attempts <= 1000) NOT VALID,
  ADD CONSTRAINT job_max_losses_limit CHECK (max_losses <= 1000) NOT VALID,
  ADD CONSTRAINT job_retry_check CHECK (
    CASE jsonb_typeof(retry -> 'factor') WHEN 'number' THEN (retry ->> 'factor')::numeric BETWEEN 1 AND 100
         ELSE retry -> 'factor' IS NULL END) NOT VALID;
