-- The yardstick's tables: Rota's layout with full history and fencing, and nothing of tenants, limits, schedules.
CREATE SCHEMA yardstick;
SET search_path = yardstick;

CREATE TABLE job (
  shard smallint, job_uid bigint, tenant_id text, job_id text, handler text, payload jsonb, pool text,
  priority smallint, max_attempts smallint, lease_seconds integer,
  PRIMARY KEY (shard, job_uid)
);
CREATE TABLE run (
  shard smallint, job_uid bigint, scheduled_for timestamptz, origin smallint, state text, attempt smallint,
  created_at timestamptz, finished_at timestamptz,
  PRIMARY KEY (shard, job_uid, scheduled_for)
) PARTITION BY RANGE (scheduled_for);
CREATE TABLE run_1 PARTITION OF run FOR VALUES FROM ('2026-11-01') TO ('2026-12-01') WITH (fillfactor = 80);
CREATE TABLE pending (
  shard smallint, job_uid bigint, scheduled_for timestamptz, gate char(1), pool text, rank bigint,
  available_at timestamptz, attempt smallint,
  PRIMARY KEY (shard, job_uid, scheduled_for)
);
CREATE INDEX ON pending (pool, rank) WHERE gate = 'o';
CREATE INDEX ON pending (shard, available_at) WHERE gate = 't';
CREATE TABLE lease (
  shard smallint, job_uid bigint, scheduled_for timestamptz, attempt smallint, token uuid, worker_id text,
  claimed_at timestamptz, expires_at timestamptz,
  PRIMARY KEY (shard, job_uid, scheduled_for)
) WITH (fillfactor = 50);
CREATE TABLE attempt (
  shard smallint, job_uid bigint, scheduled_for timestamptz, attempt smallint, worker_id text, token uuid,
  started_at timestamptz, finished_at timestamptz, outcome text, error text,
  PRIMARY KEY (shard, job_uid, scheduled_for, attempt)
) PARTITION BY RANGE (scheduled_for);
CREATE TABLE attempt_1 PARTITION OF attempt FOR VALUES FROM ('2026-11-01') TO ('2026-12-01');

INSERT INTO job
SELECT (uid % 64)::smallint, uid, 't', 'job-' || i, 'noop', '{"a": 1}', 'default', 5, 3, 60
  FROM generate_series(1, 20000) i, LATERAL (SELECT (i * 7919::bigint * 104729) % 4611686018427387903 AS uid) u;
ALTER TABLE pending SET (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000,
                         autovacuum_vacuum_cost_delay = 0);
ALTER TABLE lease SET (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000,
                       autovacuum_vacuum_cost_delay = 0);
