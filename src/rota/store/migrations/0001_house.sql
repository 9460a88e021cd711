-- The house: definitions, the ledger of runs, the queue, leases, history and who owns what.
-- A run's state is where its row is: `pending`, `lease`, or neither once `run.outcome` is written.

CREATE TABLE rota.cluster (
  one boolean PRIMARY KEY DEFAULT true CHECK (one),
  shard_count smallint NOT NULL CHECK (shard_count > 0)
);
COMMENT ON TABLE rota.cluster IS 'What was fixed when this database became a Rota cluster.';

CREATE FUNCTION rota.run_id(job_uid bigint, scheduled_for timestamptz) RETURNS uuid
  LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
RETURN (lpad(to_hex((extract(epoch FROM scheduled_for) * 1000)::bigint), 12, '0') || '8000'
        || to_hex(job_uid | (1::bigint << 63)))::uuid;
COMMENT ON FUNCTION rota.run_id IS 'The run''s UUID (version 8): 48 bits of milliseconds, then 62 bits of job_uid.';

-- define ---------------------------------------------------------------------------------------------------------

CREATE TABLE rota.job (
  shard smallint NOT NULL,
  job_uid bigint NOT NULL,
  tenant_id text NOT NULL,
  job_id text NOT NULL,
  version bigint NOT NULL,
  handler text NOT NULL,
  schedule jsonb,
  payload jsonb NOT NULL,
  pool text NOT NULL,
  priority smallint NOT NULL CHECK (priority BETWEEN 0 AND 9),
  max_attempts integer NOT NULL CHECK (max_attempts >= 1),
  retry jsonb NOT NULL,
  misfire jsonb NOT NULL,
  misfire_grace_ms bigint NOT NULL CHECK (misfire_grace_ms >= 0),
  timeout_ms bigint NOT NULL CHECK (timeout_ms > 0),
  lease_ms bigint NOT NULL CHECK (lease_ms > 0),
  jitter_ms bigint NOT NULL CHECK (jitter_ms >= 0),
  overlap text NOT NULL CHECK (overlap IN ('allow', 'skip')),
  start_deadline_ms bigint CHECK (start_deadline_ms > 0),
  labels jsonb NOT NULL,
  description text NOT NULL,
  paused_at timestamptz,
  pause_reason text,
  quarantined text,
  deleted_at timestamptz,
  created_at timestamptz NOT NULL,
  updated_at timestamptz NOT NULL,
  PRIMARY KEY (shard, job_uid),
  UNIQUE (shard, tenant_id, job_id)
) WITH (vacuum_truncate = false);
COMMENT ON COLUMN rota.job.quarantined IS 'Why this job''s schedule cannot be computed; an edit lifts it.';
COMMENT ON COLUMN rota.job.deleted_at IS 'A deleted job keeps its row, since its runs keep their history.';

CREATE TABLE rota.schedule (
  shard smallint NOT NULL,
  job_uid bigint NOT NULL,
  next_run_at timestamptz,
  next_slot timestamptz,
  version bigint NOT NULL,
  since timestamptz NOT NULL,
  PRIMARY KEY (shard, job_uid)
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0,
        vacuum_truncate = false);
CREATE INDEX schedule_due ON rota.schedule (shard, next_run_at) WHERE next_run_at IS NOT NULL;
COMMENT ON COLUMN rota.schedule.next_run_at IS 'When a scheduler must look; NULL while paused, quarantined or finished.';
COMMENT ON COLUMN rota.schedule.next_slot IS 'The first slot that is neither a run nor in the slot ledger.';
COMMENT ON COLUMN rota.schedule.since IS 'From this instant on, each slot that came due is a run or in the slot ledger.';

-- run ------------------------------------------------------------------------------------------------------------

CREATE TABLE rota.run (
  shard smallint NOT NULL,
  job_uid bigint NOT NULL,
  scheduled_for timestamptz NOT NULL,
  created_at timestamptz NOT NULL,
  finished_at timestamptz,
  attempt integer,
  origin text NOT NULL CHECK (origin IN ('schedule', 'manual')),
  outcome text CHECK (outcome IN ('succeeded', 'dead', 'cancelled')),
  reason text,
  payload jsonb,
  PRIMARY KEY (shard, job_uid, scheduled_for),
  CHECK ((outcome IS NULL) = (finished_at IS NULL))
) PARTITION BY RANGE (scheduled_for);
CREATE INDEX run_created ON rota.run USING brin (created_at) WITH (pages_per_range = 32);
COMMENT ON TABLE rota.run IS 'The ledger: one row per slot, inserted once; the outcome is written once (a replay clears it).';

CREATE TABLE rota.pending (
  shard smallint NOT NULL,
  job_uid bigint NOT NULL,
  scheduled_for timestamptz NOT NULL,
  rank bigint NOT NULL,
  available_at timestamptz NOT NULL,
  attempt integer NOT NULL CHECK (attempt >= 0),
  gate text NOT NULL CHECK (gate IN ('open', 'time', 'handler', 'limit', 'upstream')),
  pool text NOT NULL,
  handler text NOT NULL,
  PRIMARY KEY (shard, job_uid, scheduled_for)
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_insert_threshold = -1,
        autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 10000, autovacuum_vacuum_cost_delay = 0,
        vacuum_truncate = false);
CREATE INDEX pending_open ON rota.pending (pool, rank) WHERE gate = 'open';
CREATE INDEX pending_time ON rota.pending (shard, available_at) WHERE gate = 'time';
CREATE INDEX pending_handler ON rota.pending (pool, handler) WHERE gate = 'handler';
COMMENT ON COLUMN rota.pending.attempt IS 'Attempts charged so far.';

CREATE TABLE rota.lease (
  shard smallint NOT NULL,
  job_uid bigint NOT NULL,
  scheduled_for timestamptz NOT NULL,
  token uuid NOT NULL,
  claimed_at timestamptz NOT NULL,
  expires_at timestamptz NOT NULL,
  lease_ms bigint NOT NULL,
  attempt integer NOT NULL CHECK (attempt >= 1),
  worker_id text NOT NULL,
  PRIMARY KEY (shard, job_uid, scheduled_for)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000,
        autovacuum_vacuum_insert_threshold = -1, autovacuum_analyze_scale_factor = 0,
        autovacuum_analyze_threshold = 10000, autovacuum_vacuum_cost_delay = 0, vacuum_truncate = false);
COMMENT ON TABLE rota.lease IS 'Runs that run. No index holds expires_at, so a renewal is a HOT update.';

-- history --------------------------------------------------------------------------------------------------------

CREATE TABLE rota.attempt (
  shard smallint NOT NULL,
  job_uid bigint NOT NULL,
  scheduled_for timestamptz NOT NULL,
  token uuid NOT NULL,
  claimed_at timestamptz NOT NULL,
  ended_at timestamptz NOT NULL,
  attempt integer NOT NULL,
  outcome text NOT NULL
    CHECK (outcome IN ('succeeded', 'failed', 'timed_out', 'gave_up', 'snoozed', 'released', 'lost')),
  worker_id text NOT NULL,
  error text,
  PRIMARY KEY (shard, job_uid, scheduled_for, token)
) PARTITION BY RANGE (scheduled_for);
COMMENT ON TABLE rota.attempt IS 'One row per ended attempt; the only place where an error text is kept.';

CREATE TABLE rota.dead (
  shard smallint NOT NULL,
  job_uid bigint NOT NULL,
  scheduled_for timestamptz NOT NULL,
  tenant_id text NOT NULL,
  died_at timestamptz NOT NULL,
  PRIMARY KEY (shard, job_uid, scheduled_for)
);
CREATE INDEX dead_by_tenant ON rota.dead (tenant_id, died_at);
COMMENT ON TABLE rota.dead IS 'Dead letters: pointers to runs that Rota stopped trying.';

CREATE TABLE rota.skipped (
  shard smallint NOT NULL,
  job_uid bigint NOT NULL,
  first_slot timestamptz NOT NULL,
  last_slot timestamptz NOT NULL,
  slots integer,
  reason text NOT NULL CHECK (reason IN ('misfire', 'overlap', 'start_deadline', 'paused')),
  policy jsonb,
  recorded_at timestamptz NOT NULL,
  PRIMARY KEY (shard, job_uid, first_slot),
  CHECK (first_slot <= last_slot)
);
COMMENT ON TABLE rota.skipped IS 'The slot ledger: ranges of slots that made no run, and why. slots is NULL past 1,000.';

-- who owns what ----------------------------------------------------------------------------------------------------

CREATE TABLE rota.shard (
  shard smallint PRIMARY KEY,
  owner text,
  epoch bigint NOT NULL DEFAULT 0,
  expires_at timestamptz NOT NULL DEFAULT 'epoch'
) WITH (fillfactor = 50);
COMMENT ON COLUMN rota.shard.epoch IS 'Grows with every change of owner; a stale owner''s writes name an older one.';

CREATE TABLE rota.scheduler (
  scheduler_id text PRIMARY KEY,
  started_at timestamptz NOT NULL,
  expires_at timestamptz NOT NULL,
  version text NOT NULL,
  tzdata text NOT NULL
) WITH (fillfactor = 50);

CREATE TABLE rota.worker (
  instance uuid PRIMARY KEY,
  worker_id text NOT NULL,
  pool text NOT NULL,
  handlers text[] NOT NULL,
  concurrency integer NOT NULL,
  started_at timestamptz NOT NULL,
  expires_at timestamptz NOT NULL,
  version text NOT NULL,
  tzdata text NOT NULL
) WITH (fillfactor = 50);
COMMENT ON TABLE rota.worker IS 'Liveness and known handlers. Never evidence for a lease: those are renewed one by one.';

-- partitions -------------------------------------------------------------------------------------------------------

CREATE FUNCTION rota.ensure_month(month date) RETURNS integer
  LANGUAGE plpgsql
AS $$
DECLARE
  first date := date_trunc('month', month::timestamp)::date;
  parent text;
  child text;
  made integer := 0;
BEGIN
  -- One maker at a time; a plain CREATE ... PARTITION OF would lock the parent against everybody, ATTACH does not.
  PERFORM pg_advisory_xact_lock(hashtext('rota.ensure_month'));
  FOREACH parent IN ARRAY ARRAY['run', 'attempt'] LOOP
    child := format('%s_%s', parent, to_char(first, 'YYYY_MM'));
    IF to_regclass(format('rota.%I', child)) IS NULL THEN
      EXECUTE format('CREATE TABLE rota.%I (LIKE rota.%I INCLUDING ALL)', child, parent);
      IF parent = 'run' THEN
        -- A floor of pages, as for the hot tables below.
        EXECUTE format('ALTER TABLE rota.%I SET (vacuum_truncate = false)', child);
        EXECUTE format('INSERT INTO rota.%I (shard, job_uid, scheduled_for, created_at, origin)
                        SELECT 0, n, ''epoch'', ''epoch'', ''manual'' FROM generate_series(1, 2000) n', child);
        EXECUTE format('DELETE FROM rota.%I', child);
      END IF;
      -- Half a page is left for the row that gains its outcome, which keeps that update HOT.
      EXECUTE format('ALTER TABLE rota.%I SET (fillfactor = %s, autovacuum_vacuum_scale_factor = 0.1,
                                               autovacuum_analyze_scale_factor = 0.05)',
                     child, CASE parent WHEN 'run' THEN 50 ELSE 100 END);
      EXECUTE format('ALTER TABLE rota.%I ATTACH PARTITION rota.%I FOR VALUES FROM (%L) TO (%L)', parent, child,
                     first::timestamp AT TIME ZONE 'UTC', (first + interval '1 month') AT TIME ZONE 'UTC');
      made := made + 1;
    END IF;
  END LOOP;
  RETURN made;
END
$$;
COMMENT ON FUNCTION rota.ensure_month IS 'Make the month''s partitions (UTC) unless they are there; returns how many.';

-- A connection keeps the plans of its statements. One made while a table has few pages reads it from end to end, and
-- is kept when the table has grown deep. So the tables that statements look up by key get a floor of pages, which
-- vacuum_truncate lets them keep.
INSERT INTO rota.job (shard, job_uid, tenant_id, job_id, version, handler, payload, pool, priority, max_attempts, retry,
  misfire, misfire_grace_ms, timeout_ms, lease_ms, jitter_ms, overlap, labels, description, created_at, updated_at)
SELECT 0, n, '', n::text, 1, '', '{}', '', 0, 1, '{}', '{}', 0, 1, 1, 0, 'allow', '{}', '', 'epoch', 'epoch'
  FROM generate_series(1, 2000) n;
DELETE FROM rota.job;
INSERT INTO rota.schedule (shard, job_uid, version, since) SELECT 0, n, 1, 'epoch' FROM generate_series(1, 5000) n;
DELETE FROM rota.schedule;
INSERT INTO rota.pending (shard, job_uid, scheduled_for, rank, available_at, attempt, gate, pool, handler)
SELECT 0, n, 'epoch', 0, 'epoch', 0, 'limit', '', '' FROM generate_series(1, 5000) n;
DELETE FROM rota.pending;
INSERT INTO rota.lease (shard, job_uid, scheduled_for, token, claimed_at, expires_at, lease_ms, attempt, worker_id)
SELECT 0, n, 'epoch', '00000000-0000-8000-8000-000000000000', 'epoch', 'epoch', 1, 1, '' FROM generate_series(1, 2500) n;
DELETE FROM rota.lease;

-- what people read ---------------------------------------------------------------------------------------------------

CREATE VIEW rota.job_run AS
SELECT rota.run_id(r.job_uid, r.scheduled_for) AS run_id,
       j.tenant_id, j.job_id, r.scheduled_for, r.shard, r.job_uid,
       coalesce(r.outcome, CASE WHEN l.token IS NOT NULL THEN 'running'
                                WHEN p.gate = 'upstream' THEN 'blocked' ELSE 'pending' END) AS state,
       p.gate, r.origin, coalesce(l.attempt, p.attempt, r.attempt, 0) AS attempt, j.max_attempts,
       coalesce(p.handler, j.handler) AS handler, coalesce(p.pool, j.pool) AS pool, j.priority,
       r.created_at, p.available_at, l.claimed_at AS started_at, l.worker_id, l.expires_at AS lease_expires_at,
       r.finished_at, r.reason, coalesce(r.payload, j.payload) AS payload
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
