-- Written by `python -m rota.store.snapshot` from the migrations: change those, then write it.

CREATE SCHEMA rota;

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

COMMENT ON FUNCTION rota.ensure_month(month date) IS 'Make the month''s partitions (UTC) unless they are there; returns how many.';

CREATE FUNCTION rota.run_id(job_uid bigint, scheduled_for timestamp with time zone) RETURNS uuid
    LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
    RETURN (((lpad(to_hex(((EXTRACT(epoch FROM scheduled_for) * (1000)::numeric))::bigint), 12, '0'::text) || '8000'::text) || to_hex((job_uid | ((1)::bigint << 63)))))::uuid;

COMMENT ON FUNCTION rota.run_id(job_uid bigint, scheduled_for timestamp with time zone) IS 'The run''s UUID (version 8): 48 bits of milliseconds, then 62 bits of job_uid.';

CREATE TABLE rota.attempt (
    shard smallint NOT NULL,
    job_uid bigint NOT NULL,
    scheduled_for timestamp with time zone NOT NULL,
    token uuid NOT NULL,
    claimed_at timestamp with time zone NOT NULL,
    ended_at timestamp with time zone NOT NULL,
    attempt integer NOT NULL,
    outcome text NOT NULL,
    worker_id text NOT NULL,
    error text,
    CONSTRAINT attempt_outcome_check CHECK ((outcome = ANY (ARRAY['succeeded'::text, 'failed'::text, 'timed_out'::text, 'gave_up'::text, 'snoozed'::text, 'released'::text, 'lost'::text])))
)
PARTITION BY RANGE (scheduled_for);

COMMENT ON TABLE rota.attempt IS 'One row per ended attempt; the only place where an error text is kept.';

CREATE TABLE rota.cluster (
    one boolean DEFAULT true NOT NULL,
    shard_count smallint NOT NULL,
    CONSTRAINT cluster_one_check CHECK (one),
    CONSTRAINT cluster_shard_count_check CHECK ((shard_count > 0))
);

COMMENT ON TABLE rota.cluster IS 'What was fixed when this database became a Rota cluster.';

CREATE TABLE rota.dead (
    shard smallint NOT NULL,
    job_uid bigint NOT NULL,
    scheduled_for timestamp with time zone NOT NULL,
    tenant_id text NOT NULL,
    died_at timestamp with time zone NOT NULL
);

COMMENT ON TABLE rota.dead IS 'Dead letters: pointers to runs that Rota stopped trying.';

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
    priority smallint NOT NULL,
    max_attempts integer NOT NULL,
    retry jsonb NOT NULL,
    misfire jsonb NOT NULL,
    misfire_grace_ms bigint NOT NULL,
    timeout_ms bigint NOT NULL,
    lease_ms bigint NOT NULL,
    jitter_ms bigint NOT NULL,
    overlap text NOT NULL,
    start_deadline_ms bigint,
    labels jsonb NOT NULL,
    description text NOT NULL,
    paused_at timestamp with time zone,
    pause_reason text,
    quarantined text,
    deleted_at timestamp with time zone,
    created_at timestamp with time zone NOT NULL,
    updated_at timestamp with time zone NOT NULL,
    CONSTRAINT job_jitter_ms_check CHECK ((jitter_ms >= 0)),
    CONSTRAINT job_lease_ms_check CHECK ((lease_ms > 0)),
    CONSTRAINT job_max_attempts_check CHECK ((max_attempts >= 1)),
    CONSTRAINT job_misfire_grace_ms_check CHECK ((misfire_grace_ms >= 0)),
    CONSTRAINT job_overlap_check CHECK ((overlap = ANY (ARRAY['allow'::text, 'skip'::text]))),
    CONSTRAINT job_priority_check CHECK (((priority >= 0) AND (priority <= 9))),
    CONSTRAINT job_start_deadline_ms_check CHECK ((start_deadline_ms > 0)),
    CONSTRAINT job_timeout_ms_check CHECK ((timeout_ms > 0))
)
WITH (vacuum_truncate='false');

COMMENT ON COLUMN rota.job.quarantined IS 'Why this job''s schedule cannot be computed; an edit lifts it.';

COMMENT ON COLUMN rota.job.deleted_at IS 'A deleted job keeps its row, since its runs keep their history.';

CREATE TABLE rota.lease (
    shard smallint NOT NULL,
    job_uid bigint NOT NULL,
    scheduled_for timestamp with time zone NOT NULL,
    token uuid NOT NULL,
    claimed_at timestamp with time zone NOT NULL,
    expires_at timestamp with time zone NOT NULL,
    lease_ms bigint NOT NULL,
    attempt integer NOT NULL,
    worker_id text NOT NULL,
    CONSTRAINT lease_attempt_check CHECK ((attempt >= 1))
)
WITH (fillfactor='50', autovacuum_vacuum_scale_factor='0', autovacuum_vacuum_threshold='2000', autovacuum_vacuum_insert_threshold='-1', autovacuum_analyze_scale_factor='0', autovacuum_analyze_threshold='10000', autovacuum_vacuum_cost_delay='0', vacuum_truncate='false');

COMMENT ON TABLE rota.lease IS 'Runs that run. No index holds expires_at, so a renewal is a HOT update.';

CREATE TABLE rota.pending (
    shard smallint NOT NULL,
    job_uid bigint NOT NULL,
    scheduled_for timestamp with time zone NOT NULL,
    rank bigint NOT NULL,
    available_at timestamp with time zone NOT NULL,
    attempt integer NOT NULL,
    gate text NOT NULL,
    pool text NOT NULL,
    handler text NOT NULL,
    CONSTRAINT pending_attempt_check CHECK ((attempt >= 0)),
    CONSTRAINT pending_gate_check CHECK ((gate = ANY (ARRAY['open'::text, 'time'::text, 'handler'::text, 'limit'::text, 'upstream'::text])))
)
WITH (autovacuum_vacuum_scale_factor='0', autovacuum_vacuum_threshold='2000', autovacuum_vacuum_insert_threshold='-1', autovacuum_analyze_scale_factor='0', autovacuum_analyze_threshold='10000', autovacuum_vacuum_cost_delay='0', vacuum_truncate='false');

COMMENT ON COLUMN rota.pending.attempt IS 'Attempts charged so far.';

CREATE TABLE rota.run (
    shard smallint NOT NULL,
    job_uid bigint NOT NULL,
    scheduled_for timestamp with time zone NOT NULL,
    created_at timestamp with time zone NOT NULL,
    finished_at timestamp with time zone,
    attempt integer,
    origin text NOT NULL,
    outcome text,
    reason text,
    payload jsonb,
    CONSTRAINT run_check CHECK (((outcome IS NULL) = (finished_at IS NULL))),
    CONSTRAINT run_origin_check CHECK ((origin = ANY (ARRAY['schedule'::text, 'manual'::text]))),
    CONSTRAINT run_outcome_check CHECK ((outcome = ANY (ARRAY['succeeded'::text, 'dead'::text, 'cancelled'::text])))
)
PARTITION BY RANGE (scheduled_for);

COMMENT ON TABLE rota.run IS 'The ledger: one row per slot, inserted once; the outcome is written once (a replay clears it).';

CREATE VIEW rota.job_run AS
 SELECT rota.run_id(r.job_uid, r.scheduled_for) AS run_id,
    j.tenant_id,
    j.job_id,
    r.scheduled_for,
    r.shard,
    r.job_uid,
    COALESCE(r.outcome,
        CASE
            WHEN (l.token IS NOT NULL) THEN 'running'::text
            WHEN (p.gate = 'upstream'::text) THEN 'blocked'::text
            ELSE 'pending'::text
        END) AS state,
    p.gate,
    r.origin,
    COALESCE(l.attempt, p.attempt, r.attempt, 0) AS attempt,
    j.max_attempts,
    COALESCE(p.handler, j.handler) AS handler,
    COALESCE(p.pool, j.pool) AS pool,
    j.priority,
    r.created_at,
    p.available_at,
    l.claimed_at AS started_at,
    l.worker_id,
    l.expires_at AS lease_expires_at,
    r.finished_at,
    r.reason,
    COALESCE(r.payload, j.payload) AS payload
   FROM (((rota.run r
     LEFT JOIN rota.job j ON (((j.shard = r.shard) AND (j.job_uid = r.job_uid))))
     LEFT JOIN rota.pending p ON (((p.shard = r.shard) AND (p.job_uid = r.job_uid) AND (p.scheduled_for = r.scheduled_for))))
     LEFT JOIN rota.lease l ON (((l.shard = r.shard) AND (l.job_uid = r.job_uid) AND (l.scheduled_for = r.scheduled_for))));

COMMENT ON VIEW rota.job_run IS 'Runs in the textbook shape. Tokens are shown to nobody but their claimer.';

CREATE TABLE rota.migration (
    version integer NOT NULL,
    name text NOT NULL,
    checksum text NOT NULL,
    applied_at timestamp with time zone NOT NULL
);

CREATE VIEW rota.run_attempt AS
 SELECT rota.run_id(a.job_uid, a.scheduled_for) AS run_id,
    j.tenant_id,
    j.job_id,
    a.scheduled_for,
    a.shard,
    a.job_uid,
    a.attempt,
    a.outcome,
    a.worker_id,
    a.claimed_at AS started_at,
    a.ended_at,
    a.error
   FROM (rota.attempt a
     LEFT JOIN rota.job j ON (((j.shard = a.shard) AND (j.job_uid = a.job_uid))));

COMMENT ON VIEW rota.run_attempt IS 'Ended attempts in the textbook shape.';

CREATE TABLE rota.schedule (
    shard smallint NOT NULL,
    job_uid bigint NOT NULL,
    next_run_at timestamp with time zone,
    next_slot timestamp with time zone,
    version bigint NOT NULL,
    since timestamp with time zone NOT NULL
)
WITH (fillfactor='70', autovacuum_vacuum_scale_factor='0.02', autovacuum_vacuum_cost_delay='0', vacuum_truncate='false');

COMMENT ON COLUMN rota.schedule.next_run_at IS 'When a scheduler must look; NULL while paused, quarantined or finished.';

COMMENT ON COLUMN rota.schedule.next_slot IS 'The first slot that is neither a run nor in the slot ledger.';

COMMENT ON COLUMN rota.schedule.since IS 'From this instant on, each slot that came due is a run or in the slot ledger.';

CREATE TABLE rota.scheduler (
    scheduler_id text NOT NULL,
    started_at timestamp with time zone NOT NULL,
    expires_at timestamp with time zone NOT NULL,
    version text NOT NULL,
    tzdata text NOT NULL
)
WITH (fillfactor='50');

CREATE TABLE rota.shard (
    shard smallint NOT NULL,
    owner text,
    epoch bigint DEFAULT 0 NOT NULL,
    expires_at timestamp with time zone DEFAULT '1970-01-01 00:00:00+00'::timestamp with time zone NOT NULL
)
WITH (fillfactor='50');

COMMENT ON COLUMN rota.shard.epoch IS 'Grows with every change of owner; a stale owner''s writes name an older one.';

CREATE TABLE rota.skipped (
    shard smallint NOT NULL,
    job_uid bigint NOT NULL,
    first_slot timestamp with time zone NOT NULL,
    last_slot timestamp with time zone NOT NULL,
    slots integer,
    reason text NOT NULL,
    policy jsonb,
    recorded_at timestamp with time zone NOT NULL,
    CONSTRAINT skipped_check CHECK ((first_slot <= last_slot)),
    CONSTRAINT skipped_reason_check CHECK ((reason = ANY (ARRAY['misfire'::text, 'overlap'::text, 'start_deadline'::text, 'paused'::text])))
);

COMMENT ON TABLE rota.skipped IS 'The slot ledger: ranges of slots that made no run, and why. slots is NULL past 1,000.';

CREATE TABLE rota.worker (
    instance uuid NOT NULL,
    worker_id text NOT NULL,
    pool text NOT NULL,
    handlers text[] NOT NULL,
    concurrency integer NOT NULL,
    started_at timestamp with time zone NOT NULL,
    expires_at timestamp with time zone NOT NULL,
    version text NOT NULL,
    tzdata text NOT NULL
)
WITH (fillfactor='50');

COMMENT ON TABLE rota.worker IS 'Liveness and known handlers. Never evidence for a lease: those are renewed one by one.';

ALTER TABLE ONLY rota.attempt
    ADD CONSTRAINT attempt_pkey PRIMARY KEY (shard, job_uid, scheduled_for, token);

ALTER TABLE ONLY rota.cluster
    ADD CONSTRAINT cluster_pkey PRIMARY KEY (one);

ALTER TABLE ONLY rota.dead
    ADD CONSTRAINT dead_pkey PRIMARY KEY (shard, job_uid, scheduled_for);

ALTER TABLE ONLY rota.job
    ADD CONSTRAINT job_pkey PRIMARY KEY (shard, job_uid);

ALTER TABLE ONLY rota.job
    ADD CONSTRAINT job_shard_tenant_id_job_id_key UNIQUE (shard, tenant_id, job_id);

ALTER TABLE ONLY rota.lease
    ADD CONSTRAINT lease_pkey PRIMARY KEY (shard, job_uid, scheduled_for);

ALTER TABLE ONLY rota.migration
    ADD CONSTRAINT migration_pkey PRIMARY KEY (version);

ALTER TABLE ONLY rota.pending
    ADD CONSTRAINT pending_pkey PRIMARY KEY (shard, job_uid, scheduled_for);

ALTER TABLE ONLY rota.run
    ADD CONSTRAINT run_pkey PRIMARY KEY (shard, job_uid, scheduled_for);

ALTER TABLE ONLY rota.schedule
    ADD CONSTRAINT schedule_pkey PRIMARY KEY (shard, job_uid);

ALTER TABLE ONLY rota.scheduler
    ADD CONSTRAINT scheduler_pkey PRIMARY KEY (scheduler_id);

ALTER TABLE ONLY rota.shard
    ADD CONSTRAINT shard_pkey PRIMARY KEY (shard);

ALTER TABLE ONLY rota.skipped
    ADD CONSTRAINT skipped_pkey PRIMARY KEY (shard, job_uid, first_slot);

ALTER TABLE ONLY rota.worker
    ADD CONSTRAINT worker_pkey PRIMARY KEY (instance);

CREATE INDEX dead_by_tenant ON rota.dead USING btree (tenant_id, died_at);

CREATE INDEX pending_handler ON rota.pending USING btree (pool, handler) WHERE (gate = 'handler'::text);

CREATE INDEX pending_open ON rota.pending USING btree (pool, rank) WHERE (gate = 'open'::text);

CREATE INDEX pending_time ON rota.pending USING btree (shard, available_at) WHERE (gate = 'time'::text);

CREATE INDEX run_created ON ONLY rota.run USING brin (created_at) WITH (pages_per_range='32');

CREATE INDEX schedule_due ON rota.schedule USING btree (shard, next_run_at) WHERE (next_run_at IS NOT NULL);
