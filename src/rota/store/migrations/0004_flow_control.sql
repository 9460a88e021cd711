-- Flow control: limits and their permits, shares between tenants, priorities that age pool by pool, and what a waiting
-- run must know to be admitted, expired, or given up.

-- pools and shares -------------------------------------------------------------------------------------------------

CREATE TABLE rota.pool (
  pool text PRIMARY KEY,
  ageing_ms bigint NOT NULL CHECK (ageing_ms BETWEEN 0 AND 86400000),
  shed_above integer CHECK (shed_above >= 0),
  updated_at timestamptz NOT NULL
);
COMMENT ON TABLE rota.pool IS 'Settings of pools that differ from the installation''s own.';
COMMENT ON COLUMN rota.pool.ageing_ms IS 'What one point of priority is worth, in milliseconds of waiting.';
COMMENT ON COLUMN rota.pool.shed_above IS 'How many runs may wait before the noisiest tenants'' requests are refused; NULL: any number.';

ALTER TABLE rota.tenant ADD COLUMN weight integer NOT NULL DEFAULT 1 CHECK (weight BETWEEN 1 AND 100);
COMMENT ON COLUMN rota.tenant.weight IS 'The tenant''s share of a pool, relative to the others that have runs waiting there.';

CREATE FUNCTION rota.rank_of(available_at timestamptz, priority integer, pool text) RETURNS bigint
  LANGUAGE sql STABLE PARALLEL SAFE
RETURN floor(extract(epoch FROM available_at) * 1000)::bigint
       - priority * coalesce((SELECT p.ageing_ms FROM rota.pool p WHERE p.pool = rank_of.pool), 60000);
COMMENT ON FUNCTION rota.rank_of IS 'Priority with ageing as one number, smaller first: see rota.domain.admission.rank.';

-- limits -----------------------------------------------------------------------------------------------------------

CREATE TABLE rota.limits (
  tenant_id text NOT NULL,
  name text NOT NULL,
  kind text NOT NULL CHECK (kind IN ('tenant', 'downstream')),
  rate double precision CHECK (rate > 0),
  burst integer CHECK (burst >= 1),
  permits integer CHECK (permits BETWEEN 0 AND 100000),
  version bigint NOT NULL,
  created_at timestamptz NOT NULL,
  updated_at timestamptz NOT NULL,
  PRIMARY KEY (tenant_id, name),
  CHECK (rate IS NOT NULL OR permits IS NOT NULL),
  CHECK ((rate IS NULL) = (burst IS NULL))
);
CREATE INDEX limits_of_tenants ON rota.limits (tenant_id) WHERE kind = 'tenant';
CREATE INDEX limits_by_name ON rota.limits (name);
COMMENT ON TABLE rota.limits IS 'Rates and permits: of all a tenant''s runs, or of a downstream that jobs name.';
COMMENT ON COLUMN rota.limits.tenant_id IS 'Whose limit it is; * is the operator''s: a downstream that all tenants share, or what each tenant has.';
COMMENT ON COLUMN rota.limits.rate IS 'Tokens a second.';

CREATE TABLE rota.bucket (
  limit_key text PRIMARY KEY,
  tokens double precision NOT NULL,
  refilled_at timestamptz NOT NULL
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000,
        autovacuum_vacuum_cost_delay = 0, vacuum_truncate = false);
COMMENT ON TABLE rota.bucket IS 'Tokens of a rate as they were at refilled_at; refilled when somebody looks.';

CREATE FUNCTION rota.tokens_at(instant timestamptz, burst integer, rate double precision, tokens double precision,
                               refilled_at timestamptz) RETURNS double precision
  LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN least(burst, tokens + rate * greatest(0, extract(epoch FROM instant - refilled_at)::double precision));
COMMENT ON FUNCTION rota.tokens_at IS 'What a bucket holds at an instant; one that nobody has used yet, with NULL tokens, is full.';

CREATE TABLE rota.permit (
  limit_key text NOT NULL,
  slot integer NOT NULL CHECK (slot >= 1),
  token uuid,
  PRIMARY KEY (limit_key, slot)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000,
        autovacuum_vacuum_insert_threshold = -1, autovacuum_vacuum_cost_delay = 0, vacuum_truncate = false);
COMMENT ON TABLE rota.permit IS 'A row for each permit: a cap cannot be exceeded, since there are no more rows to hold.';
COMMENT ON COLUMN rota.permit.token IS 'The lease that holds it, NULL while it is free. In no index, so that it changes hands by a HOT update.';

-- A floor of pages, as for the other tables that statements look up by key.
INSERT INTO rota.bucket (limit_key, tokens, refilled_at) SELECT n::text, 0, 'epoch' FROM generate_series(1, 3000) n;
DELETE FROM rota.bucket;
INSERT INTO rota.permit (limit_key, slot) SELECT n::text, 1 FROM generate_series(1, 5000) n;
DELETE FROM rota.permit;

-- what jobs say of it ----------------------------------------------------------------------------------------------

ALTER TABLE rota.job
  ADD COLUMN max_concurrency integer CHECK (max_concurrency BETWEEN 1 AND 100000),
  ADD COLUMN concurrency_key text,
  ADD COLUMN key_concurrency integer NOT NULL DEFAULT 1 CHECK (key_concurrency BETWEEN 1 AND 100000),
  ADD COLUMN limits jsonb NOT NULL DEFAULT '{}',
  ADD COLUMN max_losses integer NOT NULL DEFAULT 5 CHECK (max_losses >= 1),
  ADD COLUMN pause_after integer CHECK (pause_after >= 1),
  ADD COLUMN dead_since timestamptz,
  DROP CONSTRAINT job_overlap_check,
  ADD CONSTRAINT job_overlap_check CHECK (overlap IN ('allow', 'skip', 'queue', 'queue_one', 'replace'));
COMMENT ON COLUMN rota.job.concurrency_key IS 'Where in the payload the key is found, such as payload.customer.';
COMMENT ON COLUMN rota.job.key_concurrency IS 'How many runs with one value of the key may run at once.';
COMMENT ON COLUMN rota.job.limits IS 'Named limits and what a run costs of each.';
COMMENT ON COLUMN rota.job.pause_after IS 'After how many dead letters in a row the job is paused; NULL: never.';
COMMENT ON COLUMN rota.job.dead_since IS 'Dead letters from this instant on count towards pause_after: its last resume.';

CREATE FUNCTION rota.limits_on(tenant_id text, job_uid bigint, overlap text, max_concurrency integer, concurrency_key text,
                               key_concurrency integer, limits jsonb, payload jsonb)
RETURNS TABLE (limit_key text, name text, owner text, kind text, weight integer, permits integer,
               rate double precision, burst integer)
  LANGUAGE sql STABLE PARALLEL SAFE ROWS 2
BEGIN ATOMIC
  SELECT format('job/%s', limits_on.job_uid), NULL::text, NULL::text, 'job', 1,
         CASE WHEN limits_on.overlap IN ('queue', 'queue_one', 'replace') THEN 1 ELSE limits_on.max_concurrency END,
         NULL::double precision, NULL::integer
   WHERE limits_on.overlap IN ('queue', 'queue_one', 'replace') OR limits_on.max_concurrency IS NOT NULL
  UNION ALL
  SELECT format('key/%s/%s', limits_on.job_uid, md5(keyed.value)), NULL, NULL, 'key', 1, limits_on.key_concurrency, NULL, NULL
    -- The path is the text after "payload.".
    FROM (SELECT limits_on.payload #>> string_to_array(substr(limits_on.concurrency_key, 9), '.')) keyed (value)
   WHERE keyed.value IS NOT NULL
  UNION ALL
  SELECT format('downstream/%s/%s', l.tenant_id, l.name), l.name, l.tenant_id, l.kind, wanted.value::integer, l.permits,
         l.rate, l.burst
    FROM jsonb_each_text(limits_on.limits) wanted
   CROSS JOIN LATERAL (
         SELECT x.* FROM rota.limits x
          WHERE x.tenant_id IN (limits_on.tenant_id, '*') AND x.name = wanted.key AND x.kind = 'downstream'
          ORDER BY x.tenant_id = '*' LIMIT 1) l
   WHERE limits_on.limits <> '{}'
  UNION ALL
  SELECT format('tenant/%s/%s', limits_on.tenant_id, l.name), l.name, l.tenant_id, l.kind, 1, l.permits, l.rate, l.burst
    FROM rota.limits l
   WHERE l.kind = 'tenant' AND l.tenant_id IN (limits_on.tenant_id, '*')
     AND (l.tenant_id <> '*' OR NOT EXISTS (
          SELECT FROM rota.limits own
           WHERE own.tenant_id = limits_on.tenant_id AND own.kind = 'tenant' AND own.name = l.name));
END;
COMMENT ON FUNCTION rota.limits_on IS
  'The limits that a run of a job with this payload is under, with their numbers of now and what the run costs.';

-- runs that wait, and runs that run --------------------------------------------------------------------------------

ALTER TABLE rota.pending
  ADD COLUMN priority smallint NOT NULL DEFAULT 0,
  ADD COLUMN losses integer NOT NULL DEFAULT 0 CHECK (losses >= 0),
  ADD COLUMN deadline_at timestamptz,
  ADD COLUMN limit_key text,
  ADD CONSTRAINT pending_limit_check CHECK (gate <> 'limit' OR limit_key IS NOT NULL);
COMMENT ON COLUMN rota.pending.losses IS 'How many of its attempts ended with their worker''s loss.';
COMMENT ON COLUMN rota.pending.deadline_at IS 'From then on it is useless to start it; NULL once it has begun.';
COMMENT ON COLUMN rota.pending.limit_key IS 'The limit that it waits for, or last waited for.';
-- A run that has begun has no deadline, though a release or a snooze took its attempt back.
UPDATE rota.pending p
   SET priority = j.priority,
       deadline_at = CASE WHEN p.attempt = 0 AND NOT EXISTS (
                               SELECT FROM rota.attempt a
                                WHERE a.shard = p.shard AND a.job_uid = p.job_uid AND a.scheduled_for = p.scheduled_for)
                          THEN CASE r.origin WHEN 'manual' THEN greatest(r.scheduled_for, r.created_at)
                                             ELSE r.scheduled_for END + j.start_deadline_ms * interval '1 ms' END
  FROM rota.job j, rota.run r
 WHERE j.shard = p.shard AND j.job_uid = p.job_uid
   AND r.shard = p.shard AND r.job_uid = p.job_uid AND r.scheduled_for = p.scheduled_for;
ALTER TABLE rota.pending ALTER COLUMN priority DROP DEFAULT;

-- One order serves every claim: within a pool tenants take turns, and each has its runs in the order of their ranks.
DROP INDEX rota.pending_open;
DROP INDEX rota.pending_tenant;
-- Runs of one instant have one rank. An entry that they shared could not be marked dead before the last of them is gone,
-- and every claim would look at those that went before.
CREATE INDEX pending_open ON rota.pending (pool, tenant_id, rank) WITH (deduplicate_items = off) WHERE gate = 'open';
CREATE INDEX pending_limit ON rota.pending (limit_key, tenant_id, pool, rank) WITH (deduplicate_items = off)
  WHERE gate = 'limit';
-- How deep a pool is, tenant by tenant: what waits behind any gate but an upstream's. In words of its own, so that no
-- statistics can lead a search for one of these gates to it.
CREATE INDEX pending_held ON rota.pending (pool, tenant_id) WHERE gate || '' IN ('time', 'handler', 'limit');
CREATE INDEX pending_returned ON rota.pending (limit_key) WHERE gate = 'open' AND limit_key IS NOT NULL;
CREATE INDEX pending_deadline ON rota.pending (shard, deadline_at) WHERE deadline_at IS NOT NULL;

ALTER TABLE rota.lease
  ADD COLUMN priority smallint NOT NULL DEFAULT 0,
  ADD COLUMN losses integer NOT NULL DEFAULT 0 CHECK (losses >= 0),
  ADD COLUMN permit_keys text[],
  ADD COLUMN permit_slots integer[],
  ADD CONSTRAINT lease_permits_check CHECK (cardinality(permit_keys) = cardinality(permit_slots));
UPDATE rota.lease l SET priority = j.priority FROM rota.job j WHERE j.shard = l.shard AND j.job_uid = l.job_uid;
ALTER TABLE rota.lease ALTER COLUMN priority DROP DEFAULT;
COMMENT ON COLUMN rota.lease.permit_keys IS 'The permits that it holds, with permit_slots; they go with it.';

ALTER TABLE rota.worker
  ADD COLUMN claimed bigint NOT NULL DEFAULT 0,
  ADD COLUMN claim_rate double precision,
  ADD COLUMN announced_at timestamptz;
COMMENT ON COLUMN rota.worker.claim_rate IS 'Runs a second that it claimed of late; NULL before its second announcement.';

DROP VIEW rota.job_run;
CREATE VIEW rota.job_run AS
SELECT rota.run_id(r.job_uid, r.scheduled_for) AS run_id,
       j.tenant_id, j.job_id, r.scheduled_for, r.shard, r.job_uid,
       coalesce(r.outcome, CASE WHEN l.token IS NOT NULL THEN 'running'
                                WHEN p.gate = 'upstream' THEN 'blocked' ELSE 'pending' END) AS state,
       p.gate, r.origin, coalesce(l.attempt, p.attempt, r.attempt, 0) AS attempt, j.max_attempts,
       j.handler, coalesce(p.pool, j.pool) AS pool,
       coalesce(l.priority, p.priority, j.priority) AS priority,
       r.created_at, p.available_at, p.deadline_at, p.limit_key, coalesce(l.losses, p.losses) AS losses,
       l.claimed_at AS started_at, l.worker_id, l.expires_at AS lease_expires_at,
       l.cancel_requested_at, l.progress, l.progress_note,
       r.finished_at, r.reason, coalesce(r.payload, j.payload) AS payload, r.result
  FROM rota.run r
  LEFT JOIN rota.job j ON j.shard = r.shard AND j.job_uid = r.job_uid
  LEFT JOIN rota.pending p ON p.shard = r.shard AND p.job_uid = r.job_uid AND p.scheduled_for = r.scheduled_for
  LEFT JOIN rota.lease l ON l.shard = r.shard AND l.job_uid = r.job_uid AND l.scheduled_for = r.scheduled_for;
COMMENT ON VIEW rota.job_run IS 'Runs in the textbook shape. Tokens are shown to nobody but their claimer.';


-- The functions for transactions of the caller's own, which make and end such runs.
CREATE OR REPLACE FUNCTION rota.trigger(job_id text, payload jsonb DEFAULT NULL, tenant_id text DEFAULT 'default',
                             scheduled_for timestamptz DEFAULT NULL, idempotency_key text DEFAULT NULL) RETURNS uuid
  LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
  wanted_job constant text := job_id;
  wanted_tenant constant text := tenant_id;
  wanted_slot constant timestamptz := scheduled_for;
  given constant jsonb := payload;
  given_key constant text := idempotency_key;
  -- The clock of the primary: no process of Rota is here to say what time it is.
  now_at constant timestamptz := date_trunc('milliseconds', clock_timestamp());
  slot timestamptz := coalesce(scheduled_for, now_at);
  available_at timestamptz;
  job rota.job;
  made uuid;
BEGIN
  PERFORM rota.check_request(wanted_job, wanted_tenant, given, wanted_slot, given_key);

  -- A job's shard is part of a digest that SQL does not know: one probe of an index in each.
  SELECT j.* INTO job
    FROM generate_series(0, (SELECT c.shard_count FROM rota.cluster c) - 1) s
   CROSS JOIN LATERAL (
         SELECT x.* FROM rota.job x
          WHERE x.shard = s::smallint AND x.tenant_id = wanted_tenant AND x.job_id = wanted_job LIMIT 1) j;
  -- Locked against an edit or a delete, whose own sweep over the waiting runs could not see this one.
  SELECT j.* INTO job FROM rota.job j
   WHERE j.shard = job.shard AND j.job_uid = job.job_uid AND j.deleted_at IS NULL FOR SHARE;

  IF given_key IS NOT NULL THEN
    -- The key comes first: whoever asks for the same waits here until this transaction has ended.
    INSERT INTO rota.idempotency (tenant_id, key, request_hash, run_id, created_at)
    SELECT wanted_tenant, given_key, rota.request_hash(wanted_job, wanted_slot, given),
           rota.run_id(coalesce(job.job_uid, 0), slot), now_at
    ON CONFLICT (tenant_id, key) DO NOTHING;
    IF NOT FOUND THEN
      SELECT i.run_id INTO made FROM rota.idempotency i
       WHERE i.tenant_id = wanted_tenant AND i.key = given_key
         AND i.request_hash = rota.request_hash(wanted_job, wanted_slot, given);
      IF made IS NULL THEN
        RAISE EXCEPTION 'the idempotency key % stands for another request', quote_literal(given_key)
          USING ERRCODE = 'RT411', HINT = 'use a new key for a new request';
      END IF;
      RETURN made;
    END IF;
  END IF;

  IF job.job_uid IS NULL THEN
    RAISE EXCEPTION 'there is no job % of tenant %', quote_literal(wanted_job), quote_literal(wanted_tenant)
      USING ERRCODE = 'RT404', HINT = 'put the job first; tenant_id is ''default'' unless it is given';
  END IF;

  -- "Now" is the first instant from now on that is still free: a transaction may want many runs of one job.
  FOR turn IN 1..50 LOOP
    IF to_regclass(format('rota.run_%s', to_char(slot AT TIME ZONE 'UTC', 'YYYY_MM'))) IS NULL THEN
      PERFORM rota.ensure_month((slot AT TIME ZONE 'UTC')::date);
    END IF;
    INSERT INTO rota.run (shard, job_uid, scheduled_for, created_at, origin, payload)
    VALUES (job.shard, job.job_uid, slot, now_at, 'manual', given)
    ON CONFLICT (shard, job_uid, scheduled_for) DO NOTHING;
    IF FOUND THEN
      made := rota.run_id(job.job_uid, slot);
    END IF;
    EXIT WHEN made IS NOT NULL OR wanted_slot IS NOT NULL;
    SELECT max(r.scheduled_for) + interval '1 millisecond' INTO slot FROM rota.run r
     WHERE r.shard = job.shard AND r.job_uid = job.job_uid
       AND r.scheduled_for >= slot AND r.scheduled_for < now_at + interval '1 minute';
    EXIT WHEN slot IS NULL;
  END LOOP;
  IF made IS NULL THEN
    RAISE EXCEPTION 'job % has a run at % already%', quote_literal(wanted_job),
      CASE WHEN wanted_slot IS NULL THEN 'every instant of the next minute' ELSE rota.instant_text(slot) END,
      CASE WHEN wanted_slot IS NULL THEN '' ELSE ': ' || rota.run_id(job.job_uid, wanted_slot) END
      USING ERRCODE = 'RT410', HINT = 'a slot is a run''s identity: choose another scheduled_for';
  END IF;

  available_at := CASE WHEN wanted_slot IS NULL THEN now_at ELSE greatest(wanted_slot, now_at) END;
  INSERT INTO rota.pending (shard, job_uid, scheduled_for, rank, available_at, attempt, gate, pool, handler, tenant_id,
                            priority, deadline_at)
  VALUES (job.shard, job.job_uid, slot, rota.rank_of(available_at, job.priority, job.pool), available_at, 0,
          CASE WHEN available_at > now_at THEN 'time' ELSE 'open' END, job.pool, rota.handler_key(job.handler),
          wanted_tenant, job.priority, available_at + job.start_deadline_ms * interval '1 ms');
  IF given_key IS NOT NULL THEN
    UPDATE rota.idempotency i SET run_id = made WHERE i.tenant_id = wanted_tenant AND i.key = given_key;
  END IF;
  INSERT INTO rota.audit (tenant_id, at, audit_id, actor, action, subject, after)
  VALUES (wanted_tenant, now_at, gen_random_uuid(), 'sql:' || current_user, 'run.triggered', made::text,
          jsonb_strip_nulls(jsonb_build_object('job_id', wanted_job, 'scheduled_for', rota.instant_text(slot),
                                               'idempotency_key', given_key)));
  RETURN made;
END
$$;

CREATE OR REPLACE FUNCTION rota.complete(run_id uuid, lease_token uuid, result jsonb DEFAULT NULL) RETURNS void
  LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
  -- The clock of the primary: no process of Rota is here to say what time it is.
  now_at constant timestamptz := clock_timestamp();
  given_run constant uuid := run_id;
  given_token constant uuid := lease_token;
  given constant jsonb := result;
  at record;
  home smallint;
  lease rota.lease;
BEGIN
  IF given_run IS NULL OR given_token IS NULL THEN
    RAISE EXCEPTION 'run_id: the run''s id or its lease token is NULL'
      USING ERRCODE = 'RT422', HINT = 'pass both as the handler was given them';
  ELSIF octet_length(given::text) > 65536 OR jsonb_path_exists(given, '$.**{65}') THEN
    RAISE EXCEPTION 'result: has % bytes, or is nested more than 64 deep', octet_length(given::text)
      USING ERRCODE = 'RT422', HINT = 'at most 65536 bytes: keep the data elsewhere and pass its key';
  END IF;
  SELECT * INTO at FROM rota.slot_of(given_run);
  SELECT at.job_uid % c.shard_count INTO home FROM rota.cluster c;

  -- The token is the proof: a lapsed lease that nobody reclaimed is still its holder's. Somebody's wish to cancel the
  -- run comes too late now: what was done is done.
  DELETE FROM rota.lease l
   WHERE l.shard = home AND l.job_uid = at.job_uid AND l.scheduled_for = at.scheduled_for AND l.token = given_token
  RETURNING l.* INTO lease;
  IF NOT FOUND THEN
    IF EXISTS (SELECT FROM rota.attempt a
                WHERE a.shard = home AND a.job_uid = at.job_uid AND a.scheduled_for = at.scheduled_for
                  AND a.token = given_token AND a.outcome = 'succeeded') THEN
      RAISE EXCEPTION 'run % was completed under this lease before', given_run
        USING ERRCODE = 'RT409', HINT = 'roll back: what the first transaction wrote is kept, once';
    END IF;
    RAISE EXCEPTION 'the lease on run % was reclaimed', given_run
      USING ERRCODE = 'RT409', HINT = 'roll back: another attempt has the run now, or had it';
  END IF;

  -- Who waits for a permit is let in within the second, by the schedulers.
  UPDATE rota.permit p SET token = NULL
    FROM unnest(lease.permit_keys, lease.permit_slots) held (limit_key, slot)
   WHERE p.limit_key = held.limit_key AND p.slot = held.slot AND p.token = given_token;
  INSERT INTO rota.attempt (shard, job_uid, scheduled_for, token, claimed_at, ended_at, attempt, outcome, worker_id)
  VALUES (home, at.job_uid, at.scheduled_for, given_token, lease.claimed_at, now_at, lease.attempt, 'succeeded',
          lease.worker_id);
  UPDATE rota.run r SET outcome = 'succeeded', finished_at = now_at, attempt = lease.attempt, result = given
   WHERE r.shard = home AND r.job_uid = at.job_uid AND r.scheduled_for = at.scheduled_for AND r.outcome IS NULL;
  IF NOT FOUND THEN
    RAISE EXCEPTION 'run % has a lease and is finished', given_run
      USING ERRCODE = 'RT409', HINT = 'the database is damaged: see `rota doctor`';
  END IF;
END
$$;
