-- Written by `python -m rota.store.snapshot` from the migrations: change those, then write it.

CREATE SCHEMA rota;

CREATE FUNCTION rota.check_request(job_id text, tenant_id text, payload jsonb, scheduled_for timestamp with time zone, idempotency_key text) RETURNS void
    LANGUAGE plpgsql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $_$
DECLARE
  trouble text;
  advice text;
BEGIN
  IF job_id IS NULL OR tenant_id IS NULL THEN
    trouble := 'job_id: is NULL';
    advice := 'name the job, and its tenant if it is not ''default''';
  ELSIF scheduled_for IS NOT NULL AND (
        NOT isfinite(scheduled_for) OR scheduled_for < 'epoch' OR scheduled_for >= timestamptz '10000-01-01Z'
        OR scheduled_for <> date_trunc('milliseconds', scheduled_for)) THEN
    trouble := format('scheduled_for: %s is not a slot', scheduled_for);
    advice := 'slots are whole milliseconds from 1970 to 9999: use date_trunc(''milliseconds'', ...)';
  ELSIF payload IS NOT NULL AND jsonb_typeof(payload) <> 'object' THEN
    trouble := format('payload: is a JSON %s', jsonb_typeof(payload));
    advice := 'pass a JSON object, such as jsonb_build_object(...)';
  ELSIF octet_length(payload::text) > 262144 THEN
    trouble := format('payload: has %s bytes', octet_length(payload::text));
    advice := 'at most 262144: keep the data elsewhere and pass its key';
  ELSIF jsonb_path_exists(payload, '$.**{65}') THEN
    trouble := 'payload: is nested more than 64 deep';
    advice := 'keep the data elsewhere and pass its key';
  ELSIF rota.has_long_number(payload) THEN
    trouble := 'payload: holds a whole number of more than 4300 digits';
    advice := 'pass it as text';
  ELSIF idempotency_key IS NOT NULL AND (idempotency_key !~ '^.{1,200}$' OR idempotency_key ~ '[[:cntrl:]]') THEN
    trouble := 'idempotency_key: is not 1 to 200 printable characters';
    advice := 'a random UUID will do';
  END IF;
  IF trouble IS NOT NULL THEN
    RAISE EXCEPTION '%', trouble USING ERRCODE = 'RT422', HINT = advice;
  END IF;
END
$_$;

COMMENT ON FUNCTION rota.check_request(job_id text, tenant_id text, payload jsonb, scheduled_for timestamp with time zone, idempotency_key text) IS 'Refuse a request for a run that could not be kept, naming what is wrong with it.';

CREATE FUNCTION rota.complete(run_id uuid, lease_token uuid, result jsonb DEFAULT NULL::jsonb) RETURNS void
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $_$
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
  ELSIF rota.has_long_number(given) THEN
    RAISE EXCEPTION 'result: holds a whole number of more than 4300 digits'
      USING ERRCODE = 'RT422', HINT = 'pass it as text';
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
  INSERT INTO rota.attempt (shard, job_uid, scheduled_for, token, claimed_at, ended_at, attempt, outcome, worker_id,
                            job_version, progress, progress_note)
  VALUES (home, at.job_uid, at.scheduled_for, given_token, lease.claimed_at, greatest(now_at, lease.claimed_at),
          lease.attempt, 'succeeded', lease.worker_id, lease.job_version, lease.progress, lease.progress_note);
  UPDATE rota.run r SET outcome = 'succeeded', finished_at = greatest(now_at, lease.claimed_at), attempt = lease.attempt, result = given
   WHERE r.shard = home AND r.job_uid = at.job_uid AND r.scheduled_for = at.scheduled_for AND r.outcome IS NULL;
  IF NOT FOUND THEN
    RAISE EXCEPTION 'run % has a lease and is finished', given_run
      USING ERRCODE = 'RT409', HINT = 'the database is damaged: see `rota doctor`';
  END IF;
END
$_$;

COMMENT ON FUNCTION rota.complete(run_id uuid, lease_token uuid, result jsonb) IS 'Finish a run in the caller''s own transaction, with its other writes: succeeded if that commits. Commit soon after.';

CREATE FUNCTION rota.ensure_month(month date) RETURNS integer
    LANGUAGE plpgsql
    SET lock_timeout TO '1s'
    AS $$
DECLARE
  first constant date := date_trunc('month', month::timestamp)::date;
  low constant timestamptz := first::timestamp AT TIME ZONE 'UTC';
  high constant timestamptz := (first + interval '1 month') AT TIME ZONE 'UTC';
  parent text;
  child text;
  far text;
  made integer := 0;
BEGIN
  -- Nothing is waited for where nothing is to be made.
  IF 2 = (SELECT count(*) FROM pg_catalog.pg_inherits i JOIN pg_catalog.pg_class c ON c.oid = i.inhrelid
           WHERE i.inhparent IN ('rota.run'::regclass, 'rota.attempt'::regclass)
             AND c.oid IN (to_regclass(format('rota.run_%s', to_char(first, 'YYYY_MM'))),
                           to_regclass(format('rota.attempt_%s', to_char(first, 'YYYY_MM'))))) THEN
    RETURN 0;
  END IF;
  -- One maker at a time. Whoever keeps it in an open transaction keeps the others for no longer than lock_timeout.
  PERFORM pg_advisory_xact_lock(hashtext('rota.ensure_month'));
  FOREACH parent IN ARRAY ARRAY['run', 'attempt'] LOOP
    child := format('%s_%s', parent, to_char(first, 'YYYY_MM'));
    far := format('%s_far', parent);
    CONTINUE WHEN EXISTS (SELECT FROM pg_catalog.pg_inherits i
                           WHERE i.inhparent = to_regclass(format('rota.%I', parent))
                             AND i.inhrelid = to_regclass(format('rota.%I', child)));
    IF to_regclass(format('rota.%I', child)) IS NOT NULL THEN
      RAISE EXCEPTION 'the table rota.% is in the way: it is no partition of rota.%', child, parent
        USING ERRCODE = 'RT423', HINT = format('a month that was detached: rename it, drop it, or attach it again; until '
                                               'then the rows of this month are kept in rota.%s', far);
    END IF;
    EXECUTE format('CREATE TABLE rota.%I (LIKE rota.%I INCLUDING ALL)', child, parent);
    IF parent = 'run' THEN
      -- A floor of pages, as for the hot tables.
      EXECUTE format('ALTER TABLE rota.%I SET (vacuum_truncate = false)', child);
      EXECUTE format('INSERT INTO rota.%I (shard, job_uid, scheduled_for, created_at, origin)
                      SELECT 0, n, ''epoch'', ''epoch'', ''manual'' FROM generate_series(1, 2000) n', child);
      EXECUTE format('DELETE FROM rota.%I', child);
    END IF;
    -- Half a page is left for the row that gains its outcome, which keeps that update HOT.
    EXECUTE format('ALTER TABLE rota.%I SET (fillfactor = %s, autovacuum_vacuum_scale_factor = 0.1,
                                             autovacuum_analyze_scale_factor = 0.05)',
                   child, CASE parent WHEN 'run' THEN 50 ELSE 100 END);
    -- Rows of this month that came while it was far move in. Most of them under their own locks alone; what came
    -- meanwhile, under the table's, which all statements need: it is waited for briefly, and held while few rows move.
    EXECUTE format('WITH moved AS (DELETE FROM rota.%I WHERE scheduled_for >= %L AND scheduled_for < %L RETURNING *)
                    INSERT INTO rota.%I SELECT * FROM moved', far, low, high, child);
    PERFORM set_config('lock_timeout', '200ms', true);
    EXECUTE format('LOCK TABLE rota.%I IN ACCESS EXCLUSIVE MODE', far);
    EXECUTE format('WITH moved AS (DELETE FROM rota.%I WHERE scheduled_for >= %L AND scheduled_for < %L RETURNING *)
                    INSERT INTO rota.%I SELECT * FROM moved', far, low, high, child);
    -- A plain CREATE ... PARTITION OF would lock the parent against everybody, ATTACH does not.
    EXECUTE format('ALTER TABLE rota.%I ATTACH PARTITION rota.%I FOR VALUES FROM (%L) TO (%L)', parent, child, low, high);
    made := made + 1;
  END LOOP;
  RETURN made;
END
$$;

COMMENT ON FUNCTION rota.ensure_month(month date) IS 'Make the month''s partitions (UTC) unless they are there; returns how many. Commit at once: it locks run_far.';

CREATE TABLE rota.job (
    shard smallint NOT NULL,
    job_uid bigint NOT NULL,
    tenant_id text NOT NULL,
    job_id text NOT NULL COLLATE pg_catalog."C",
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
    resume_at timestamp with time zone,
    max_concurrency integer,
    concurrency_key text,
    key_concurrency integer DEFAULT 1 NOT NULL,
    limits jsonb DEFAULT '{}'::jsonb NOT NULL,
    max_losses integer DEFAULT 5 NOT NULL,
    pause_after integer,
    dead_since timestamp with time zone,
    owner text,
    source text,
    declared jsonb,
    overrides jsonb,
    orphaned_at timestamp with time zone,
    generation integer DEFAULT 0 NOT NULL,
    payload_since bigint DEFAULT 1 NOT NULL,
    resume_missed text,
    CONSTRAINT job_generation_check CHECK ((generation >= 0)),
    CONSTRAINT job_jitter_ms_check CHECK ((jitter_ms >= 0)),
    CONSTRAINT job_key_concurrency_check CHECK (((key_concurrency >= 1) AND (key_concurrency <= 100000))),
    CONSTRAINT job_lease_ms_check CHECK ((lease_ms > 0)),
    CONSTRAINT job_max_attempts_check CHECK ((max_attempts >= 1)),
    CONSTRAINT job_max_concurrency_check CHECK (((max_concurrency >= 1) AND (max_concurrency <= 100000))),
    CONSTRAINT job_max_losses_check CHECK ((max_losses >= 1)),
    CONSTRAINT job_misfire_grace_ms_check CHECK ((misfire_grace_ms >= 0)),
    CONSTRAINT job_overlap_check CHECK ((overlap = ANY (ARRAY['allow'::text, 'skip'::text, 'queue'::text, 'queue_one'::text, 'replace'::text]))),
    CONSTRAINT job_owner_check CHECK ((owner = ANY (ARRAY['code'::text, 'operator'::text]))),
    CONSTRAINT job_pause_after_check CHECK ((pause_after >= 1)),
    CONSTRAINT job_priority_check CHECK (((priority >= 0) AND (priority <= 9))),
    CONSTRAINT job_start_deadline_ms_check CHECK ((start_deadline_ms > 0)),
    CONSTRAINT job_timeout_ms_check CHECK ((timeout_ms > 0))
)
WITH (vacuum_truncate='false');

COMMENT ON COLUMN rota.job.quarantined IS 'Why this job''s schedule cannot be computed; an edit lifts it.';

COMMENT ON COLUMN rota.job.deleted_at IS 'A deleted job keeps its row, since its runs keep their history.';

COMMENT ON COLUMN rota.job.resume_at IS 'When a paused job runs again by itself.';

COMMENT ON COLUMN rota.job.concurrency_key IS 'Where in the payload the key is found, such as payload.customer.';

COMMENT ON COLUMN rota.job.key_concurrency IS 'How many runs with one value of the key may run at once.';

COMMENT ON COLUMN rota.job.limits IS 'Named limits and what a run costs of each.';

COMMENT ON COLUMN rota.job.pause_after IS 'After how many dead letters in a row the job is paused; NULL: never.';

COMMENT ON COLUMN rota.job.dead_since IS 'Dead letters from this instant on count towards pause_after: its last resume.';

COMMENT ON COLUMN rota.job.owner IS 'NULL: put by a version that knew no owners.';

COMMENT ON COLUMN rota.job.source IS 'The app that declares it, or the import that made it.';

COMMENT ON COLUMN rota.job.declared IS 'The definition as the code gave it last.';

COMMENT ON COLUMN rota.job.overrides IS 'Fields that an operator changed since, which stay until the code''s value changes.';

COMMENT ON COLUMN rota.job.orphaned_at IS 'Since when its source declares it no longer.';

COMMENT ON COLUMN rota.job.generation IS 'How many jobs of this id were deleted before this one.';

COMMENT ON COLUMN rota.job.payload_since IS 'The version with which the present payload came.';

COMMENT ON COLUMN rota.job.resume_missed IS 'What becomes of missed slots when the pause ends at resume_at; NULL: policy.';

CREATE FUNCTION rota.free_slots(job rota.job, now_at timestamp with time zone, wanted integer, beside timestamp with time zone[]) RETURNS timestamp with time zone[]
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
DECLARE
  -- What others make at this moment cannot be seen, and would be waited for. So each takes a lot of 16 s that nobody
  -- else is at, and the minute from now on, at least, is for runs that are asked for one by one.
  lot integer := ceil((extract(epoch FROM now_at) + 60) / 16);
  low constant timestamptz := to_timestamp(16.0 * lot);
  high timestamptz;
  reach interval;
  first timestamptz;
  -- In each second there are two instants at most that are left out: see below.
  span constant interval := (wanted + wanted / 400 + 4 + coalesce(cardinality(beside), 0)) * interval '1 ms';
BEGIN
  -- Behind the last run that is there, unless that stands so near the end that there may be some behind it.
  FOREACH reach IN ARRAY ARRAY[interval '1 hour', interval '1 day', interval '1 year'] LOOP
    SELECT max(r.scheduled_for) INTO first FROM rota.run r
     WHERE r.shard = job.shard AND r.job_uid = job.job_uid AND r.scheduled_for >= low AND r.scheduled_for < low + reach;
    EXIT WHEN first IS NULL OR first < low + reach - interval '1 minute';
  END LOOP;
  lot := greatest(lot, floor(extract(epoch FROM first) / 16));
  FOR turn IN 1..200 LOOP
    IF pg_try_advisory_xact_lock((job.job_uid % 2147483647)::integer, lot) THEN
      high := to_timestamp(16.0 * (lot + 1));
      -- Whoever had the lot may have committed meanwhile.
      SELECT coalesce(max(r.scheduled_for) + interval '1 ms', high - interval '16 s') INTO first FROM rota.run r
       WHERE r.shard = job.shard AND r.job_uid = job.job_uid
         AND r.scheduled_for >= high - interval '16 s' AND r.scheduled_for < high;
      EXIT WHEN first + span <= high;
    END IF;
    lot := lot + 1;
  END LOOP;
  -- A slot to come stays the scheduler's: none that the schedule names, at most one a second, and no whole second, which
  -- tomorrow's schedule may name.
  RETURN ARRAY (
    SELECT s.slot FROM generate_series(first, first + span, interval '1 ms') s (slot)
     WHERE s.slot <> date_trunc('second', s.slot)
       AND (job.schedule IS NULL OR NOT rota.may_name(job.schedule, s.slot))
       AND (beside IS NULL OR s.slot NOT IN (SELECT b.slot FROM unnest(beside) b (slot) WHERE b.slot IS NOT NULL))
     ORDER BY s.slot LIMIT wanted);
END
$$;

COMMENT ON FUNCTION rota.free_slots(job rota.job, now_at timestamp with time zone, wanted integer, beside timestamp with time zone[]) IS 'Instants for runs of a job that are asked for at once: free ones, none that its schedule names, and none of others beside.';

CREATE FUNCTION rota.handler_key(handler text) RETURNS text
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN CASE WHEN (handler ~ '^https?://'::text) THEN 'http'::text ELSE handler END;

COMMENT ON FUNCTION rota.handler_key(handler text) IS 'What a worker must know to run a handler: its name, or "http" for every HTTP target.';

CREATE FUNCTION rota.has_long_number(value jsonb) RETURNS boolean
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $_$
  SELECT octet_length(value::text) > 4300
     AND jsonb_path_exists(value, 'strict $.** ? (@.type() == "number" && (@ >= 1e4300 || @ <= -1e4300))', '{}', true)
$_$;

COMMENT ON FUNCTION rota.has_long_number(value jsonb) IS 'Whether JSON holds a whole number with more digits than Python reads.';

CREATE FUNCTION rota.held_slots(shards smallint[], job_uids bigint[], slots timestamp with time zone[]) RETURNS TABLE(shard smallint, job_uid bigint)
    LANGUAGE plpgsql
    SET lock_timeout TO '1ms'
    AS $$
#variable_conflict use_column
DECLARE
  wanted record;
BEGIN
  -- Each is tried, and taken back.
  FOR wanted IN SELECT w.shard, w.job_uid, w.slot FROM unnest(shards, job_uids, slots) w (shard, job_uid, slot) LOOP
    BEGIN
      PERFORM FROM rota.schedule s WHERE s.shard = wanted.shard AND s.job_uid = wanted.job_uid FOR NO KEY UPDATE NOWAIT;
      INSERT INTO rota.run (shard, job_uid, scheduled_for, created_at, origin)
      VALUES (wanted.shard, wanted.job_uid, wanted.slot, wanted.slot, 'schedule')
      ON CONFLICT (shard, job_uid, scheduled_for) DO NOTHING;
      RAISE EXCEPTION 'taken back' USING ERRCODE = 'RT000';
    EXCEPTION
      WHEN lock_not_available THEN
        shard := wanted.shard;
        job_uid := wanted.job_uid;
        RETURN NEXT;
      WHEN OTHERS THEN
        NULL;  -- nobody holds it; what else may be wrong with it is told by the one who makes it
    END;
  END LOOP;
END
$$;

COMMENT ON FUNCTION rota.held_slots(shards smallint[], job_uids bigint[], slots timestamp with time zone[]) IS 'Which of these jobs'' slots cannot be made at once, since an open transaction holds the run or the schedule.';

CREATE FUNCTION rota.instant_text(instant timestamp with time zone) RETURNS text
    LANGUAGE sql STABLE STRICT PARALLEL SAFE
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
  SELECT to_char(instant AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"')
$$;

COMMENT ON FUNCTION rota.instant_text(instant timestamp with time zone) IS 'An instant as ISO 8601 in UTC, whatever the session''s zone and style of dates.';

CREATE FUNCTION rota.is_free_lot(job_uid bigint, slot timestamp with time zone) RETURNS boolean
    LANGUAGE sql
    RETURN CASE WHEN pg_try_advisory_lock_shared(((job_uid % (2147483647)::bigint))::integer, (floor((EXTRACT(epoch FROM slot) / (16)::numeric)))::integer) THEN pg_advisory_unlock_shared(((job_uid % (2147483647)::bigint))::integer, (floor((EXTRACT(epoch FROM slot) / (16)::numeric)))::integer) ELSE false END;

COMMENT ON FUNCTION rota.is_free_lot(job_uid bigint, slot timestamp with time zone) IS 'Whether no open transaction of somebody else makes many runs of a job about an instant: see rota.free_slots.';

CREATE TABLE rota.limits (
    tenant_id text NOT NULL,
    name text NOT NULL,
    kind text NOT NULL,
    rate double precision,
    burst integer,
    permits integer,
    version bigint NOT NULL,
    created_at timestamp with time zone NOT NULL,
    updated_at timestamp with time zone NOT NULL,
    CONSTRAINT limits_burst_check CHECK ((burst >= 1)),
    CONSTRAINT limits_check CHECK (((rate IS NOT NULL) OR (permits IS NOT NULL))),
    CONSTRAINT limits_check1 CHECK (((rate IS NULL) = (burst IS NULL))),
    CONSTRAINT limits_kind_check CHECK ((kind = ANY (ARRAY['tenant'::text, 'downstream'::text]))),
    CONSTRAINT limits_permits_check CHECK (((permits >= 0) AND (permits <= 100000))),
    CONSTRAINT limits_rate_check CHECK ((rate > (0)::double precision))
);

COMMENT ON TABLE rota.limits IS 'Rates and permits: of all a tenant''s runs, or of a downstream that jobs name.';

COMMENT ON COLUMN rota.limits.tenant_id IS 'Whose limit it is; * is the operator''s: a downstream that all tenants share, or what each tenant has.';

COMMENT ON COLUMN rota.limits.rate IS 'Tokens a second.';

CREATE FUNCTION rota.limits_on(tenant_id text, job_uid bigint, overlap text, max_concurrency integer, concurrency_key text, key_concurrency integer, limits jsonb, payload jsonb) RETURNS TABLE(limit_key text, name text, owner text, kind text, weight integer, permits integer, rate double precision, burst integer)
    LANGUAGE sql STABLE ROWS 2 PARALLEL SAFE
    BEGIN ATOMIC
 SELECT format('job/%s'::text, limits_on.job_uid) AS format,
     NULL::text AS text,
     NULL::text AS text,
     'job'::text,
     1,
         CASE
             WHEN (limits_on.overlap <> 'allow'::text) THEN 1
             ELSE limits_on.max_concurrency
         END AS max_concurrency,
     NULL::double precision AS float8,
     NULL::integer AS int4
   WHERE ((limits_on.overlap <> 'allow'::text) OR (limits_on.max_concurrency IS NOT NULL))
 UNION ALL
  SELECT format('key/%s/%s'::text, limits_on.job_uid, md5(keyed.value)) AS format,
     NULL::text,
     NULL::text,
     'key'::text,
     1,
     limits_on.key_concurrency AS key_concurrency,
     NULL::double precision,
     NULL::integer
    FROM ( SELECT (limits_on.payload #>> string_to_array(substr(limits_on.concurrency_key, 9), '.'::text)) AS "?column?") keyed(value)
   WHERE (keyed.value IS NOT NULL)
 UNION ALL
  SELECT format('downstream/%s/%s'::text, l.tenant_id, l.name) AS format,
     l.name,
     l.tenant_id,
     l.kind,
         CASE
             WHEN (wanted.value ~ '^[1-9][0-9]{0,8}$'::text) THEN (wanted.value)::integer
             ELSE NULL::integer
         END AS "case",
     l.permits,
     l.rate,
     l.burst
    FROM (jsonb_each_text(
         CASE jsonb_typeof(limits_on.limits)
             WHEN 'object'::text THEN limits_on.limits
             ELSE NULL::jsonb
         END) wanted(key, value)
      CROSS JOIN LATERAL ( SELECT x.tenant_id,
             x.name,
             x.kind,
             x.rate,
             x.burst,
             x.permits,
             x.version,
             x.created_at,
             x.updated_at
            FROM rota.limits x
           WHERE ((x.tenant_id = ANY (ARRAY[limits_on.tenant_id, '*'::text])) AND (x.name = wanted.key) AND (x.kind = 'downstream'::text))
           ORDER BY (x.tenant_id = '*'::text)
          LIMIT 1) l)
   WHERE ((limits_on.limits <> '{}'::jsonb) AND (wanted.value ~ '^[1-9][0-9]{0,8}$'::text))
 UNION ALL
  SELECT format('tenant/%s/%s'::text, limits_on.tenant_id, l.name) AS format,
     l.name,
     l.tenant_id,
     l.kind,
     1,
     l.permits,
     l.rate,
     l.burst
    FROM rota.limits l
   WHERE ((l.kind = 'tenant'::text) AND (l.tenant_id = ANY (ARRAY[limits_on.tenant_id, '*'::text])) AND ((l.tenant_id <> '*'::text) OR (NOT (EXISTS ( SELECT
            FROM rota.limits own
           WHERE ((own.tenant_id = limits_on.tenant_id) AND (own.kind = 'tenant'::text) AND (own.name = l.name)))))));
END;

COMMENT ON FUNCTION rota.limits_on(tenant_id text, job_uid bigint, overlap text, max_concurrency integer, concurrency_key text, key_concurrency integer, limits jsonb, payload jsonb) IS 'The limits that a run of a job with this payload is under, with their numbers of now and what the run costs.';

CREATE FUNCTION rota.make_runs(job rota.job, payloads jsonb[], slots timestamp with time zone[], keys text[], now_at timestamp with time zone, actor text) RETURNS TABLE(item integer, run_id uuid, scheduled_for timestamp with time zone, outcome text)
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
#variable_conflict use_column
DECLARE
  wants_now constant boolean := slots IS NULL OR array_position(slots, NULL) IS NOT NULL;
  free constant timestamptz[] := CASE WHEN wants_now THEN
    rota.free_slots(job, now_at, cardinality(payloads), slots) END;
  -- Once for all that start now; only those of later slots are asked about one by one.
  rank_now constant bigint := rota.rank_of(now_at, job.priority, job.pool);
  handler constant text := rota.handler_key(job.handler);
  places constant timestamptz[] := ARRAY (
    SELECT coalesce(t.slot, t.free) FROM unnest(slots, free) WITH ORDINALITY t (slot, free, item) ORDER BY t.item);
  own text[] := '{}';
  outcomes text[];
  given_back text[];
BEGIN
  IF keys IS NOT NULL THEN
    -- The keys come first, in their order: whoever asks for the same waits here until this transaction has ended.
    WITH held AS (
      INSERT INTO rota.idempotency (tenant_id, key, request_hash, run_id, created_at)
      SELECT job.tenant_id, k.key, rota.request_hash(job.job_id, k.slot, k.payload), rota.run_id(job.job_uid, k.place), now_at
        FROM (SELECT DISTINCT ON (t.key COLLATE "C") t.*
                FROM unnest(keys, payloads, slots, places) WITH ORDINALITY t (key, payload, slot, place, item)
               WHERE t.key IS NOT NULL ORDER BY t.key COLLATE "C", t.item) k
       ORDER BY k.key COLLATE "C"
      ON CONFLICT (tenant_id, key) DO NOTHING
      RETURNING key)
    SELECT coalesce(array_agg(h.key), '{}') INTO own FROM held h;
  END IF;

  -- What IN leads to is hashed where it stands in no WHERE of its own: no plan compares a thousand with a thousand.
  WITH wanted AS MATERIALIZED (
    SELECT u.*, row_number() OVER (PARTITION BY u.is_again, u.place ORDER BY u.item) AS turn
      FROM (SELECT t.item, t.place, t.payload, t.slot,
                   t.key IS NOT NULL AND (row_number() OVER (PARTITION BY t.key COLLATE "C" ORDER BY t.item) > 1
                                          OR NOT t.key IN (SELECT o.key FROM unnest(own) o (key))) AS is_again
              FROM unnest(places, payloads, slots, keys) WITH ORDINALITY t (place, payload, slot, key, item)) u),
  inserted AS (
    INSERT INTO rota.run (shard, job_uid, scheduled_for, created_at, origin, payload)
    SELECT job.shard, job.job_uid, w.place, now_at, 'manual', w.payload FROM wanted w
     -- Of two that want one slot the first gets it.
     WHERE NOT w.is_again AND w.turn = 1 ORDER BY w.place
    ON CONFLICT (shard, job_uid, scheduled_for) DO NOTHING
    RETURNING scheduled_for),
  seen AS MATERIALIZED (
    SELECT w.*, NOT w.is_again AND w.turn = 1 AND w.place IN (SELECT i.scheduled_for FROM inserted i) AS is_made,
           CASE WHEN w.slot IS NULL THEN now_at ELSE greatest(w.slot, now_at) END AS available_at
      FROM wanted w),
  queued AS (
    INSERT INTO rota.pending (shard, job_uid, scheduled_for, rank, available_at, attempt, gate, pool, handler, tenant_id,
                              priority, deadline_at, has_payload)
    SELECT job.shard, job.job_uid, s.place,
           CASE WHEN s.available_at > now_at THEN rota.rank_of(s.available_at, job.priority, job.pool) ELSE rank_now END,
           s.available_at, 0, CASE WHEN s.available_at > now_at THEN 'time' ELSE 'open' END, job.pool, handler,
           job.tenant_id, job.priority, s.available_at + job.start_deadline_ms * interval '1 ms', s.payload IS NOT NULL
      FROM seen s WHERE s.is_made)
  SELECT array_agg(CASE WHEN s.is_again THEN 'repeated' WHEN s.is_made THEN 'created' ELSE 'taken' END ORDER BY s.item)
    INTO outcomes FROM seen s;

  INSERT INTO rota.audit (tenant_id, at, audit_id, actor, action, subject, after)
  SELECT job.tenant_id, now_at, gen_random_uuid(), actor, 'runs.triggered', job.job_id,
         jsonb_build_object('runs', count(*), 'first', rota.run_id(job.job_uid, min(t.place)),
                            'last', rota.run_id(job.job_uid, max(t.place)))
    FROM unnest(places, outcomes) t (place, outcome) WHERE t.outcome = 'created' HAVING count(*) > 0;

  given_back := ARRAY (SELECT t.key FROM unnest(keys, outcomes) t (key, outcome) WHERE t.outcome = 'taken' AND t.key IS NOT NULL);
  RETURN QUERY
  SELECT t.item::integer, coalesce(i.run_id, rota.run_id(job.job_uid, t.place)),
         CASE WHEN i.run_id IS NULL THEN t.place ELSE (rota.slot_of(i.run_id)).scheduled_for END,
         CASE WHEN t.outcome <> 'repeated' THEN t.outcome
              WHEN i.request_hash IS DISTINCT FROM rota.request_hash(job.job_id, t.slot, t.payload) THEN 'reused'
              WHEN t.key = ANY (given_back) THEN 'taken'
              ELSE 'repeated' END
    FROM unnest(places, payloads, slots, keys, outcomes) WITH ORDINALITY t (place, payload, slot, key, outcome, item)
    LEFT JOIN LATERAL (
         SELECT x.run_id, x.request_hash FROM rota.idempotency x
          WHERE t.outcome = 'repeated' AND x.tenant_id = job.tenant_id AND x.key = t.key LIMIT 1) i ON true
   ORDER BY t.item;
  IF cardinality(given_back) > 0 THEN
    -- A key whose run could not be made stands for nothing.
    DELETE FROM rota.idempotency i WHERE i.tenant_id = job.tenant_id AND i.key = ANY (given_back);
  END IF;
END
$$;

COMMENT ON FUNCTION rota.make_runs(job rota.job, payloads jsonb[], slots timestamp with time zone[], keys text[], now_at timestamp with time zone, actor text) IS 'Make runs of a locked job, and say of each item: created, repeated (its key''s run), reused (its key stands for another request), or taken (its slot has a run).';

CREATE FUNCTION rota.may_name(schedule jsonb, instant timestamp with time zone) RETURNS boolean
    LANGUAGE sql STABLE PARALLEL SAFE
    RETURN CASE WHEN (schedule IS NULL) THEN false WHEN ((schedule ->> 'kind'::text) = 'once'::text) THEN (instant = ((schedule ->> 'at'::text))::timestamp with time zone) WHEN (((schedule ->> 'kind'::text) = 'interval'::text) AND ((schedule ->> 'every'::text) ~ '^([0-9]{1,7}d)?([0-9]+h)?([0-9]+m)?([0-9]+s)?([0-9]+ms)?$'::text) AND ((schedule ->> 'every'::text) ~ '[1-9]'::text)) THEN (mod(round((EXTRACT(epoch FROM (instant - (COALESCE((schedule ->> 'anchor'::text), 'epoch'::text))::timestamp with time zone)) * (1000)::numeric)), round((EXTRACT(epoch FROM ((schedule ->> 'every'::text))::interval) * (1000)::numeric))) = (0)::numeric) ELSE (instant = date_trunc('second'::text, instant)) END;

COMMENT ON FUNCTION rota.may_name(schedule jsonb, instant timestamp with time zone) IS 'Whether a schedule may have a slot at an instant; false: it certainly has none.';

CREATE TABLE rota.cluster (
    one boolean DEFAULT true NOT NULL,
    shard_count smallint NOT NULL,
    functions text,
    works_from integer,
    CONSTRAINT cluster_one_check CHECK (one),
    CONSTRAINT cluster_shard_count_check CHECK ((shard_count > 0))
);

COMMENT ON TABLE rota.cluster IS 'What was fixed when this database became a Rota cluster.';

COMMENT ON COLUMN rota.cluster.functions IS 'SHA-256 of the functions'' text that is in force.';

COMMENT ON COLUMN rota.cluster.works_from IS 'Programs that know the schema up to this version, or a later one, work on it.';

CREATE FUNCTION rota.numbers_of(limit_key text) RETURNS TABLE(permits integer, rate double precision, burst integer)
    LANGUAGE sql STABLE ROWS 1 PARALLEL SAFE
    BEGIN ATOMIC
 SELECT l.permits,
     l.rate,
     l.burst
    FROM (( SELECT split_part(numbers_of.limit_key, '/'::text, 1) AS kind,
             "substring"(numbers_of.limit_key, '^[^/]*/(.*)/[^/]*$'::text) AS owner,
             "substring"(numbers_of.limit_key, '[^/]*$'::text) AS name) k
      CROSS JOIN LATERAL ( SELECT x.tenant_id,
             x.name,
             x.kind,
             x.rate,
             x.burst,
             x.permits,
             x.version,
             x.created_at,
             x.updated_at
            FROM rota.limits x
           WHERE ((x.tenant_id = ANY (ARRAY[k.owner,
                 CASE k.kind
                     WHEN 'tenant'::text THEN '*'::text
                     ELSE k.owner
                 END])) AND (x.name = k.name) AND (x.kind = k.kind))
           ORDER BY (x.tenant_id = '*'::text)
          LIMIT 1) l)
 UNION ALL
  SELECT j.permits,
     NULL::double precision,
     NULL::integer
    FROM (( SELECT split_part(numbers_of.limit_key, '/'::text, 1) AS kind,
                 CASE
                     WHEN (numbers_of.limit_key ~ '^(job|key)/[0-9]{1,19}(/|$)'::text) THEN (split_part(numbers_of.limit_key, '/'::text, 2))::bigint
                     ELSE NULL::bigint
                 END AS job_uid) k
      CROSS JOIN LATERAL ( SELECT
                 CASE
                     WHEN (k.kind = 'key'::text) THEN
                     CASE
                         WHEN (x.concurrency_key IS NOT NULL) THEN x.key_concurrency
                         ELSE NULL::integer
                     END
                     WHEN (x.overlap <> 'allow'::text) THEN 1
                     ELSE x.max_concurrency
                 END AS permits
            FROM rota.job x
           WHERE ((x.shard = ((k.job_uid % (( SELECT c.shard_count
                    FROM rota.cluster c))::bigint))::smallint) AND (x.job_uid = k.job_uid))
          LIMIT 1) j);
END;

COMMENT ON FUNCTION rota.numbers_of(limit_key text) IS 'The numbers of now of the limit that a key stands for, as limits_on says them; no row, or only NULL: it is no more.';

CREATE TABLE rota.pool (
    pool text NOT NULL,
    ageing_ms bigint NOT NULL,
    shed_above integer,
    updated_at timestamp with time zone NOT NULL,
    CONSTRAINT pool_ageing_ms_check CHECK (((ageing_ms >= 0) AND (ageing_ms <= 86400000))),
    CONSTRAINT pool_shed_above_check CHECK ((shed_above >= 0))
);

COMMENT ON TABLE rota.pool IS 'Settings of pools that differ from the installation''s own.';

COMMENT ON COLUMN rota.pool.ageing_ms IS 'What one point of priority is worth, in milliseconds of waiting.';

COMMENT ON COLUMN rota.pool.shed_above IS 'How many runs may wait before the noisiest tenants'' requests are refused; NULL: any number.';

CREATE FUNCTION rota.rank_of(available_at timestamp with time zone, priority integer, pool text) RETURNS bigint
    LANGUAGE sql STABLE PARALLEL SAFE
    RETURN ((floor((EXTRACT(epoch FROM available_at) * (1000)::numeric)))::bigint - (priority * COALESCE((SELECT p.ageing_ms FROM rota.pool p WHERE (p.pool = rank_of.pool)), (60000)::bigint)));

COMMENT ON FUNCTION rota.rank_of(available_at timestamp with time zone, priority integer, pool text) IS 'Priority with ageing as one number, smaller first: see rota.domain.admission.rank.';

CREATE FUNCTION rota.request_hash(job_id text, scheduled_for timestamp with time zone, payload jsonb) RETURNS bytea
    LANGUAGE sql STABLE PARALLEL SAFE
    RETURN sha256(convert_to((jsonb_build_array(job_id, ((EXTRACT(epoch FROM scheduled_for) * (1000)::numeric))::bigint, payload))::text, 'UTF8'::name));

COMMENT ON FUNCTION rota.request_hash(job_id text, scheduled_for timestamp with time zone, payload jsonb) IS 'What a request under an Idempotency-Key must equal to be the same request.';

CREATE FUNCTION rota.ring(pool text) RETURNS void
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
BEGIN
  -- A transaction that has sent a notification cannot be prepared for a commit in two phases.
  IF (CASE current_setting('rota.bell', true) WHEN 'on' THEN false WHEN 'off' THEN true
           ELSE current_setting('max_prepared_transactions') <> '0' END) THEN
    RETURN;
  END IF;
  -- Idle processes share a lock; whoever gets it alone has nobody to tell. NOTIFY would cost every commit the lock under
  -- which notifying transactions queue up: ten times fewer commits a second. Got and given back in one expression, so
  -- that nothing can end the statement in between and leave the lock to this session.
  IF (CASE WHEN pg_try_advisory_lock(1919907937, hashtext(pool)) THEN NOT pg_advisory_unlock(1919907937, hashtext(pool))
           ELSE true END) THEN
    PERFORM pg_notify('rota_hint', 'pool:' || pool);
  END IF;
END
$$;

COMMENT ON FUNCTION rota.ring(pool text) IS 'Tell those who wait for a pool''s runs, as soon as this transaction has committed; silent where nobody waits.';

CREATE FUNCTION rota.run_id(job_uid bigint, scheduled_for timestamp with time zone) RETURNS uuid
    LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
    RETURN (((lpad(to_hex(((EXTRACT(epoch FROM (scheduled_for AT TIME ZONE 'UTC'::text)) * (1000)::numeric))::bigint), 12, '0'::text) || '8000'::text) || to_hex((job_uid | ((1)::bigint << 63)))))::uuid;

COMMENT ON FUNCTION rota.run_id(job_uid bigint, scheduled_for timestamp with time zone) IS 'The run''s UUID (version 8): 48 bits of milliseconds, then 62 bits of job_uid.';

CREATE FUNCTION rota.slot_of(run_id uuid, OUT job_uid bigint, OUT scheduled_for timestamp with time zone) RETURNS record
    LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
DECLARE
  hex constant text := replace(run_id::text, '-', '');
  milliseconds constant bigint := ('x' || lpad(substr(hex, 1, 12), 16, '0'))::bit(64)::bigint;
  rest constant bit(64) := ('x' || substr(hex, 17, 16))::bit(64);
BEGIN
  IF substr(hex, 13, 4) <> '8000' OR substring(rest FROM 1 FOR 2) <> B'10' OR milliseconds >= 253402300800000 THEN
    RAISE EXCEPTION 'run_id: % is not a run''s id', run_id
      USING ERRCODE = 'RT422', HINT = 'pass the id that the handler was given, or that rota.trigger returned';
  END IF;
  job_uid := rest::bigint & 4611686018427387903;
  -- In whole days and a rest, in UTC: a product of that size would lose milliseconds, a zone would shift hours.
  scheduled_for := (timestamp 'epoch' + make_interval(days => (milliseconds / 86400000)::integer)
                    + (milliseconds % 86400000) * interval '1 millisecond') AT TIME ZONE 'UTC';
END
$$;

COMMENT ON FUNCTION rota.slot_of(run_id uuid, OUT job_uid bigint, OUT scheduled_for timestamp with time zone) IS 'The job''s number and the slot that a run''s id holds; the inverse of rota.run_id.';

CREATE FUNCTION rota.tokens_at(instant timestamp with time zone, burst integer, rate double precision, tokens double precision, refilled_at timestamp with time zone) RETURNS double precision
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN LEAST((burst)::double precision, (tokens + (rate * GREATEST((0)::double precision, (EXTRACT(epoch FROM (instant - refilled_at)))::double precision))));

COMMENT ON FUNCTION rota.tokens_at(instant timestamp with time zone, burst integer, rate double precision, tokens double precision, refilled_at timestamp with time zone) IS 'What a bucket holds at an instant; one that nobody has used yet, with NULL tokens, is full.';

CREATE FUNCTION rota.trigger(job_id text, payload jsonb DEFAULT NULL::jsonb, tenant_id text DEFAULT 'default'::text, scheduled_for timestamp with time zone DEFAULT NULL::timestamp with time zone, idempotency_key text DEFAULT NULL::text) RETURNS uuid
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
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
  is_new boolean;
  job rota.job;
  made uuid;
BEGIN
  PERFORM rota.check_request(wanted_job, wanted_tenant, given, wanted_slot, given_key);

  -- Locked against an edit or a delete, whose own sweep over the waiting runs could not see this one.
  SELECT j.* INTO job FROM rota.job j
   WHERE j.tenant_id = wanted_tenant AND j.job_id = wanted_job AND j.deleted_at IS NULL LIMIT 1 FOR SHARE;

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

  -- "Now" is an instant from now on that is still free: a transaction may want many runs of one job.
  FOR turn IN 1..50 LOOP
    IF wanted_slot IS NULL THEN
      IF NOT rota.is_free_lot(job.job_uid, slot) THEN
        slot := now_at + ceil(random() * 60000) * interval '1 millisecond';
        CONTINUE;
      END IF;
      IF job.schedule IS NOT NULL AND rota.may_name(job.schedule, slot) AND EXISTS (
           SELECT FROM rota.schedule s WHERE s.shard = job.shard AND s.job_uid = job.job_uid AND s.next_slot <= slot) THEN
        -- A slot to come stays the scheduler's. The next millisecond is none: slots lie a second apart, or more.
        slot := slot + interval '1 millisecond';
      END IF;
      INSERT INTO rota.run (shard, job_uid, scheduled_for, created_at, origin, payload)
      VALUES (job.shard, job.job_uid, slot, now_at, 'manual', given)
      ON CONFLICT (shard, job_uid, scheduled_for) DO NOTHING;
      is_new := FOUND;
    ELSE
      BEGIN
        INSERT INTO rota.run (shard, job_uid, scheduled_for, created_at, origin, payload)
        VALUES (job.shard, job.job_uid, slot, now_at, 'manual', given)
        ON CONFLICT (shard, job_uid, scheduled_for) DO NOTHING;
        is_new := FOUND;
      EXCEPTION WHEN check_violation THEN
        -- The slot's month has got a partition of its own at this very moment.
        CONTINUE WHEN turn = 1;
        RAISE;
      END;
    END IF;
    IF is_new THEN
      made := rota.run_id(job.job_uid, slot);
    END IF;
    EXIT WHEN made IS NOT NULL OR wanted_slot IS NOT NULL;
    -- Somewhere in the next tenth of a second, the next second, ten, the next minute: to ask for the last that is taken
    -- costs more than to try.
    slot := now_at + ceil(random() * least(60000, 10 * 10 ^ turn)) * interval '1 millisecond';
  END LOOP;
  IF made IS NULL THEN
    RAISE EXCEPTION 'job % has a run at % already%', quote_literal(wanted_job),
      CASE WHEN wanted_slot IS NULL THEN 'every instant of the next minute' ELSE rota.instant_text(slot) END,
      CASE WHEN wanted_slot IS NULL THEN '' ELSE ': ' || rota.run_id(job.job_uid, wanted_slot) END
      USING ERRCODE = 'RT410', HINT = 'a slot is a run''s identity: choose another scheduled_for';
  END IF;

  available_at := CASE WHEN wanted_slot IS NULL THEN now_at ELSE greatest(wanted_slot, now_at) END;
  INSERT INTO rota.pending (shard, job_uid, scheduled_for, rank, available_at, attempt, gate, pool, handler, tenant_id,
                            priority, deadline_at, has_payload)
  VALUES (job.shard, job.job_uid, slot, rota.rank_of(available_at, job.priority, job.pool), available_at, 0,
          CASE WHEN available_at > now_at THEN 'time' ELSE 'open' END, job.pool, rota.handler_key(job.handler),
          wanted_tenant, job.priority, available_at + job.start_deadline_ms * interval '1 ms', given IS NOT NULL);
  IF given_key IS NOT NULL THEN
    UPDATE rota.idempotency i SET run_id = made WHERE i.tenant_id = wanted_tenant AND i.key = given_key;
  END IF;
  INSERT INTO rota.audit (tenant_id, at, audit_id, actor, action, subject, after)
  VALUES (wanted_tenant, now_at, gen_random_uuid(), 'sql:' || current_user, 'run.triggered', made::text,
          jsonb_strip_nulls(jsonb_build_object('job_id', wanted_job, 'scheduled_for', rota.instant_text(slot),
                                               'idempotency_key', given_key)));
  IF available_at <= now_at THEN
    PERFORM rota.ring(job.pool);
  END IF;
  RETURN made;
END
$$;

COMMENT ON FUNCTION rota.trigger(job_id text, payload jsonb, tenant_id text, scheduled_for timestamp with time zone, idempotency_key text) IS 'Make one run of a job in the caller''s own transaction, now or at a slot; returns its id.';

CREATE FUNCTION rota.trigger_many(job_id text, payloads jsonb[], tenant_id text DEFAULT 'default'::text, idempotency_keys text[] DEFAULT NULL::text[]) RETURNS SETOF uuid
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
#variable_conflict use_column
DECLARE
  wanted_job constant text := job_id;
  wanted_tenant constant text := tenant_id;
  given constant jsonb[] := payloads;
  keys constant text[] := idempotency_keys;
  count constant integer := cardinality(payloads);
  -- The clock of the primary: no process of Rota is here to say what time it is.
  now_at constant timestamptz := date_trunc('milliseconds', clock_timestamp());
  job rota.job;
  doubtful record;
  made record;
BEGIN
  IF count IS NULL OR count NOT BETWEEN 1 AND 10000 OR array_ndims(given) <> 1 OR cardinality(keys) <> count THEN
    RAISE EXCEPTION 'payloads: has % items, and there are % keys', coalesce(count, 0), coalesce(cardinality(keys), 0)
      USING ERRCODE = 'RT422', HINT = 'from 1 to 10000 payloads (NULL is the job''s own), and as many keys or none';
  END IF;
  PERFORM rota.check_request(wanted_job, wanted_tenant, NULL, NULL, NULL);
  -- Only what looks unusual is asked about, one by one, for the words: no object, one that is large or may be deep, and
  -- a key that is not of plain characters.
  FOR doubtful IN
    SELECT u.item, u.payload, u.key
      FROM unnest(given, keys) WITH ORDINALITY u (payload, key, item) CROSS JOIN LATERAL (SELECT u.payload::text) p (written)
     WHERE jsonb_typeof(u.payload) <> 'object' OR octet_length(p.written) > 4300
        OR octet_length(p.written) > 128 AND length(p.written) - length(translate(p.written, '{[', '')) > 64
        OR octet_length(u.key) NOT BETWEEN 1 AND 200 OR u.key ~ '[^!-~]'
  LOOP
    BEGIN
      PERFORM rota.check_request(wanted_job, wanted_tenant, doubtful.payload, NULL, doubtful.key);
    EXCEPTION WHEN SQLSTATE 'RT422' THEN
      RAISE EXCEPTION '%', regexp_replace(regexp_replace(SQLERRM, '^payload:', format('payloads[%s]:', doubtful.item)),
                                          '^idempotency_key:', format('idempotency_keys[%s]:', doubtful.item))
        USING ERRCODE = 'RT422', HINT = 'nothing was made';
    END;
  END LOOP;

  -- Locked against an edit or a delete, whose own sweep over the waiting runs could not see these.
  SELECT j.* INTO job FROM rota.job j
   WHERE j.tenant_id = wanted_tenant AND j.job_id = wanted_job AND j.deleted_at IS NULL LIMIT 1 FOR SHARE;
  IF job.job_uid IS NULL THEN
    RAISE EXCEPTION 'there is no job % of tenant %', quote_literal(wanted_job), quote_literal(wanted_tenant)
      USING ERRCODE = 'RT404', HINT = 'put the job first; tenant_id is ''default'' unless it is given';
  END IF;

  FOR made IN SELECT m.* FROM rota.make_runs(job, given, NULL, keys, now_at, 'sql:' || current_user) m LOOP
    IF made.outcome = 'reused' THEN
      RAISE EXCEPTION 'the idempotency key % stands for another request', quote_literal((
          SELECT k.key FROM unnest(keys) WITH ORDINALITY k (key, item) WHERE k.item = made.item))
        USING ERRCODE = 'RT411', HINT = 'use a new key for a new request; nothing was made';
    ELSIF made.outcome = 'taken' THEN
      RAISE EXCEPTION 'somebody took the instant % of job % at this very moment', rota.instant_text(made.scheduled_for),
        quote_literal(wanted_job)
        USING ERRCODE = 'RT410', HINT = 'ask again; nothing was made';
    END IF;
    RETURN NEXT made.run_id;
  END LOOP;
  PERFORM rota.ring(job.pool);
END
$$;

COMMENT ON FUNCTION rota.trigger_many(job_id text, payloads jsonb[], tenant_id text, idempotency_keys text[]) IS 'Make many runs of a job in the caller''s own transaction; returns their ids in the order of the payloads. All or none.';

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
    job_version bigint,
    progress real,
    progress_note text,
    CONSTRAINT attempt_outcome_check CHECK ((outcome = ANY (ARRAY['succeeded'::text, 'failed'::text, 'timed_out'::text, 'gave_up'::text, 'snoozed'::text, 'released'::text, 'lost'::text, 'cancelled'::text])))
)
PARTITION BY RANGE (scheduled_for);

COMMENT ON TABLE rota.attempt IS 'One row per ended attempt; the only place where an error text is kept.';

COMMENT ON COLUMN rota.attempt.job_version IS 'The version of its job that it ran with.';

COMMENT ON COLUMN rota.attempt.progress IS 'What its run had last said of its progress, with progress_note; NULL: nothing, or not known.';

CREATE TABLE rota.audit (
    tenant_id text NOT NULL,
    at timestamp with time zone NOT NULL,
    audit_id uuid NOT NULL,
    actor text NOT NULL,
    action text NOT NULL,
    subject text NOT NULL,
    before jsonb,
    after jsonb
);

COMMENT ON TABLE rota.audit IS 'Who changed what, and how it stood before and after; written by the change itself.';

CREATE TABLE rota.bucket (
    limit_key text NOT NULL,
    tokens double precision NOT NULL,
    refilled_at timestamp with time zone NOT NULL
)
WITH (fillfactor='50', autovacuum_vacuum_scale_factor='0', autovacuum_vacuum_threshold='1000', autovacuum_vacuum_cost_delay='0', vacuum_truncate='false');

COMMENT ON TABLE rota.bucket IS 'Tokens of a rate as they were at refilled_at; refilled when somebody looks.';

CREATE TABLE rota.claim (
    tenant_id text NOT NULL,
    worker_id text NOT NULL,
    claim_id uuid NOT NULL,
    tokens uuid[] NOT NULL,
    claimed_at timestamp with time zone NOT NULL
);

COMMENT ON TABLE rota.claim IS 'The tokens under which a claim over HTTP took its runs: the same claim asked for again finds them.';

CREATE TABLE rota.dead (
    shard smallint NOT NULL,
    job_uid bigint NOT NULL,
    scheduled_for timestamp with time zone NOT NULL,
    tenant_id text NOT NULL,
    died_at timestamp with time zone NOT NULL
);

COMMENT ON TABLE rota.dead IS 'Dead letters: pointers to runs that Rota stopped trying.';

CREATE TABLE rota.former_payload (
    shard smallint NOT NULL,
    job_uid bigint NOT NULL,
    since bigint NOT NULL,
    payload jsonb NOT NULL
);

COMMENT ON TABLE rota.former_payload IS 'Payloads that jobs had from a version on, until a later one; the last ones of each job.';

CREATE TABLE rota."freeze" (
    tenant_id text NOT NULL,
    reason text NOT NULL,
    actor text NOT NULL,
    frozen_at timestamp with time zone NOT NULL,
    lifted_at timestamp with time zone
);

COMMENT ON TABLE rota."freeze" IS 'What is frozen; * is everywhere. A lifted one stays until all that it deferred is back.';

CREATE TABLE rota.idempotency (
    tenant_id text NOT NULL,
    key text NOT NULL,
    request_hash bytea NOT NULL,
    run_id uuid NOT NULL,
    created_at timestamp with time zone NOT NULL
);

COMMENT ON TABLE rota.idempotency IS 'Which run a request with an Idempotency-Key made.';

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
    cancel_requested_at timestamp with time zone,
    progress real,
    progress_note text,
    priority smallint NOT NULL,
    losses integer DEFAULT 0 NOT NULL,
    permit_keys text[],
    permit_slots integer[],
    available_at timestamp with time zone,
    set_apart text,
    job_version bigint,
    CONSTRAINT lease_attempt_check CHECK ((attempt >= 1)),
    CONSTRAINT lease_losses_check CHECK ((losses >= 0)),
    CONSTRAINT lease_permits_check CHECK ((cardinality(permit_keys) = cardinality(permit_slots)))
)
WITH (fillfactor='50', autovacuum_vacuum_scale_factor='0', autovacuum_vacuum_threshold='2000', autovacuum_vacuum_insert_threshold='-1', autovacuum_analyze_scale_factor='0', autovacuum_analyze_threshold='10000', autovacuum_vacuum_cost_delay='0', vacuum_truncate='false');

COMMENT ON TABLE rota.lease IS 'Runs that run. No index holds expires_at, so a renewal is a HOT update.';

COMMENT ON COLUMN rota.lease.cancel_requested_at IS 'Somebody wants the run to end: the worker is told at its next renewal.';

COMMENT ON COLUMN rota.lease.permit_keys IS 'The permits that it holds, with permit_slots; they go with it.';

COMMENT ON COLUMN rota.lease.available_at IS 'From when on the run had waited when it was claimed; NULL: not known.';

COMMENT ON COLUMN rota.lease.set_apart IS 'Why its end could not be written when it lapsed; its expiry tells when that is tried again.';

COMMENT ON COLUMN rota.lease.job_version IS 'The version of its job that the run was claimed with.';

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
    tenant_id text NOT NULL,
    priority smallint NOT NULL,
    losses integer DEFAULT 0 NOT NULL,
    deadline_at timestamp with time zone,
    limit_key text,
    has_payload boolean DEFAULT true NOT NULL,
    CONSTRAINT pending_attempt_check CHECK ((attempt >= 0)),
    CONSTRAINT pending_gate_check CHECK ((gate = ANY (ARRAY['open'::text, 'time'::text, 'handler'::text, 'limit'::text, 'upstream'::text]))),
    CONSTRAINT pending_limit_check CHECK (((gate <> 'limit'::text) OR (limit_key IS NOT NULL))),
    CONSTRAINT pending_losses_check CHECK ((losses >= 0))
)
WITH (autovacuum_vacuum_scale_factor='0', autovacuum_vacuum_threshold='2000', autovacuum_vacuum_insert_threshold='-1', autovacuum_analyze_scale_factor='0', autovacuum_analyze_threshold='10000', autovacuum_vacuum_cost_delay='0', vacuum_truncate='false');

COMMENT ON COLUMN rota.pending.attempt IS 'Attempts charged so far.';

COMMENT ON COLUMN rota.pending.losses IS 'How many of its attempts ended with their worker''s loss.';

COMMENT ON COLUMN rota.pending.deadline_at IS 'From then on it is useless to start it; NULL once it has begun.';

COMMENT ON COLUMN rota.pending.limit_key IS 'The limit that it waits for, or last waited for.';

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
    result jsonb,
    CONSTRAINT run_check CHECK (((outcome IS NULL) = (finished_at IS NULL))),
    CONSTRAINT run_origin_check CHECK ((origin = ANY (ARRAY['schedule'::text, 'manual'::text]))),
    CONSTRAINT run_outcome_check CHECK ((outcome = ANY (ARRAY['succeeded'::text, 'dead'::text, 'cancelled'::text])))
)
PARTITION BY RANGE (scheduled_for);

COMMENT ON TABLE rota.run IS 'The ledger: one row per slot, inserted once; the outcome is written once (a replay clears it).';

COMMENT ON COLUMN rota.run.result IS 'What the attempt that succeeded returned; bounded.';

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
    j.handler,
    COALESCE(p.pool, j.pool) AS pool,
    COALESCE(l.priority, p.priority, j.priority) AS priority,
    r.created_at,
    p.available_at,
    p.deadline_at,
    p.limit_key,
    COALESCE(l.losses, p.losses) AS losses,
    l.claimed_at AS started_at,
    l.worker_id,
    l.expires_at AS lease_expires_at,
    l.cancel_requested_at,
    l.progress,
    l.progress_note,
    r.finished_at,
    COALESCE(r.reason, l.set_apart) AS reason,
    COALESCE(r.payload,
        CASE
            WHEN ((j.payload_since = 1) OR ((r.outcome IS NULL) AND (l.token IS NULL))) THEN j.payload
            ELSE ( SELECT
                    CASE
                        WHEN (ran.version < j.payload_since) THEN ( SELECT f.payload
                           FROM rota.former_payload f
                          WHERE ((f.shard = r.shard) AND (f.job_uid = r.job_uid) AND (f.since <= ran.version))
                          ORDER BY f.since DESC
                         LIMIT 1)
                        ELSE j.payload
                    END AS payload
               FROM ( SELECT COALESCE(l.job_version, ( SELECT a.job_version
                               FROM rota.attempt a
                              WHERE ((a.shard = r.shard) AND (a.job_uid = r.job_uid) AND (a.scheduled_for = r.scheduled_for))
                              ORDER BY a.ended_at DESC
                             LIMIT 1)) AS version) ran)
        END) AS payload,
    r.result
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

CREATE TABLE rota.pause_wanted (
    shard smallint NOT NULL,
    job_uid bigint NOT NULL,
    noted_at timestamp with time zone NOT NULL
);

COMMENT ON TABLE rota.pause_wanted IS 'Jobs that are to be paused for their dead letters as soon as nobody has them locked.';

CREATE TABLE rota.permit (
    limit_key text NOT NULL,
    slot integer NOT NULL,
    token uuid,
    used_at timestamp with time zone,
    CONSTRAINT permit_slot_check CHECK ((slot >= 1))
)
WITH (fillfactor='50', autovacuum_vacuum_scale_factor='0', autovacuum_vacuum_threshold='2000', autovacuum_vacuum_insert_threshold='-1', autovacuum_vacuum_cost_delay='0', vacuum_truncate='false');

COMMENT ON TABLE rota.permit IS 'A row for each permit: a cap cannot be exceeded, since there are no more rows to hold.';

COMMENT ON COLUMN rota.permit.token IS 'The lease that holds it, NULL while it is free. In no index, so that it changes hands by a HOT update.';

COMMENT ON COLUMN rota.permit.used_at IS 'When it was last given to a lease, or made; NULL where no version told.';

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
    a.error,
    a.job_version,
    a.progress,
    a.progress_note
   FROM (rota.attempt a
     LEFT JOIN rota.job j ON (((j.shard = a.shard) AND (j.job_uid = a.job_uid))));

COMMENT ON VIEW rota.run_attempt IS 'Ended attempts in the textbook shape.';

CREATE TABLE rota.saving (
    limit_key text NOT NULL,
    shard smallint NOT NULL,
    job_uid bigint NOT NULL,
    scheduled_for timestamp with time zone NOT NULL,
    tenant_id text NOT NULL,
    pool text NOT NULL,
    cost integer NOT NULL,
    saves boolean NOT NULL,
    since timestamp with time zone NOT NULL,
    until timestamp with time zone NOT NULL,
    CONSTRAINT saving_check CHECK ((since < until)),
    CONSTRAINT saving_cost_check CHECK ((cost >= 2))
);

COMMENT ON TABLE rota.saving IS 'The run that is first in turn at a limit and takes more of it than is free.';

COMMENT ON COLUMN rota.saving.saves IS 'Until then what becomes free is kept for its tenant in its pool; else others pass it by until then.';

CREATE TABLE rota.schedule (
    shard smallint NOT NULL,
    job_uid bigint NOT NULL,
    next_run_at timestamp with time zone,
    next_slot timestamp with time zone,
    version bigint NOT NULL,
    since timestamp with time zone NOT NULL,
    frozen_by text
)
WITH (fillfactor='70', autovacuum_vacuum_scale_factor='0.02', autovacuum_vacuum_cost_delay='0', vacuum_truncate='false');

COMMENT ON COLUMN rota.schedule.next_run_at IS 'When a scheduler must look; NULL while paused, quarantined or finished.';

COMMENT ON COLUMN rota.schedule.next_slot IS 'The first slot that is neither a run nor in the slot ledger.';

COMMENT ON COLUMN rota.schedule.since IS 'From this instant on, each slot that came due is a run or in the slot ledger.';

COMMENT ON COLUMN rota.schedule.frozen_by IS 'The freeze that met a slot as it came due: next_run_at is the end of the year 9999 until then.';

CREATE TABLE rota.scheduler (
    scheduler_id text NOT NULL,
    started_at timestamp with time zone NOT NULL,
    expires_at timestamp with time zone NOT NULL,
    version text NOT NULL,
    tzdata text NOT NULL,
    last_tick_at timestamp with time zone
)
WITH (fillfactor='50');

COMMENT ON COLUMN rota.scheduler.last_tick_at IS 'When its timer last looked at its shards successfully.';

CREATE TABLE rota.set_aside (
    shard smallint NOT NULL,
    job_uid bigint NOT NULL,
    what text NOT NULL,
    epoch bigint NOT NULL,
    reason text NOT NULL,
    since timestamp with time zone NOT NULL,
    CONSTRAINT set_aside_what_check CHECK ((what = ANY (ARRAY['slot'::text, 'runs'::text, 'leases'::text, 'resume'::text])))
);

COMMENT ON TABLE rota.set_aside IS 'Jobs that a scheduler cannot serve for now, with the reason; true as long as the shard is owned under that epoch.';

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

CREATE TABLE rota.tenant (
    tenant_id text NOT NULL,
    max_jobs integer,
    max_payload_bytes integer,
    calls_per_second double precision,
    signing_secret text NOT NULL,
    created_at timestamp with time zone NOT NULL,
    updated_at timestamp with time zone NOT NULL,
    weight integer DEFAULT 1 NOT NULL,
    former_secret text,
    former_secret_until timestamp with time zone,
    CONSTRAINT tenant_calls_per_second_check CHECK ((calls_per_second > (0)::double precision)),
    CONSTRAINT tenant_max_jobs_check CHECK ((max_jobs >= 0)),
    CONSTRAINT tenant_max_payload_bytes_check CHECK ((max_payload_bytes >= 2)),
    CONSTRAINT tenant_weight_check CHECK (((weight >= 1) AND (weight <= 100)))
);

COMMENT ON TABLE rota.tenant IS 'Quotas, where NULL means the installation''s own, and the key that signs calls of HTTP targets.';

COMMENT ON COLUMN rota.tenant.weight IS 'The tenant''s share of a pool, relative to the others that have runs waiting there.';

COMMENT ON COLUMN rota.tenant.former_secret IS 'The signing secret before the last rotation, with which calls are signed too until former_secret_until.';

CREATE TABLE rota.token (
    token_id text NOT NULL,
    tenant_id text NOT NULL,
    name text NOT NULL,
    scopes text[] NOT NULL,
    secret_hash bytea NOT NULL,
    created_at timestamp with time zone NOT NULL,
    created_by text NOT NULL,
    expires_at timestamp with time zone,
    revoked_at timestamp with time zone,
    last_used_at timestamp with time zone,
    parent_id text,
    CONSTRAINT token_scopes_check CHECK ((scopes <@ ARRAY['read'::text, 'jobs:write'::text, 'runs:operate'::text, 'worker'::text, 'admin'::text]))
);

COMMENT ON COLUMN rota.token.tenant_id IS 'Whose rows it sees; * is the operator''s, which sees every tenant''s.';

COMMENT ON COLUMN rota.token.secret_hash IS 'SHA-256 of the secret part, which is random and stored nowhere.';

COMMENT ON COLUMN rota.token.parent_id IS 'The token that made it, with which it ends; NULL: made beside the database, or by 0.1.0.';

CREATE TABLE rota.worker (
    instance uuid NOT NULL,
    worker_id text NOT NULL,
    pool text NOT NULL,
    handlers text[] NOT NULL,
    concurrency integer NOT NULL,
    started_at timestamp with time zone NOT NULL,
    expires_at timestamp with time zone NOT NULL,
    version text NOT NULL,
    tzdata text NOT NULL,
    tenant_id text,
    draining_at timestamp with time zone,
    last_claim_at timestamp with time zone,
    claimed bigint DEFAULT 0 NOT NULL,
    claim_rate double precision,
    announced_at timestamp with time zone
)
WITH (fillfactor='50');

COMMENT ON TABLE rota.worker IS 'Liveness and known handlers. Never evidence for a lease: those are renewed one by one.';

COMMENT ON COLUMN rota.worker.tenant_id IS 'The one tenant whose runs it takes; NULL: those of all.';

COMMENT ON COLUMN rota.worker.last_claim_at IS 'When a claim last succeeded, with runs or without, or the worker was full.';

COMMENT ON COLUMN rota.worker.claim_rate IS 'Runs a second that it claimed of late; NULL before its second announcement.';

ALTER TABLE ONLY rota.attempt
    ADD CONSTRAINT attempt_pkey PRIMARY KEY (shard, job_uid, scheduled_for, token);

ALTER TABLE ONLY rota.audit
    ADD CONSTRAINT audit_pkey PRIMARY KEY (tenant_id, at, audit_id);

ALTER TABLE ONLY rota.bucket
    ADD CONSTRAINT bucket_pkey PRIMARY KEY (limit_key);

ALTER TABLE ONLY rota.claim
    ADD CONSTRAINT claim_pkey PRIMARY KEY (tenant_id, worker_id, claim_id);

ALTER TABLE ONLY rota.cluster
    ADD CONSTRAINT cluster_pkey PRIMARY KEY (one);

ALTER TABLE ONLY rota.dead
    ADD CONSTRAINT dead_pkey PRIMARY KEY (shard, job_uid, scheduled_for);

ALTER TABLE ONLY rota.former_payload
    ADD CONSTRAINT former_payload_pkey PRIMARY KEY (shard, job_uid, since);

ALTER TABLE ONLY rota."freeze"
    ADD CONSTRAINT freeze_pkey PRIMARY KEY (tenant_id);

ALTER TABLE ONLY rota.idempotency
    ADD CONSTRAINT idempotency_pkey PRIMARY KEY (tenant_id, key);

ALTER TABLE rota.job
    ADD CONSTRAINT job_jitter_most CHECK ((jitter_ms <= 86400000)) NOT VALID;

ALTER TABLE rota.job
    ADD CONSTRAINT job_labels_texts CHECK ((NOT jsonb_path_exists(labels, 'strict $.*?(@.type() != "string")'::jsonpath, '{}'::jsonb, true))) NOT VALID;

ALTER TABLE rota.job
    ADD CONSTRAINT job_lease_ms_limit CHECK ((lease_ms <= 3600000)) NOT VALID;

ALTER TABLE rota.job
    ADD CONSTRAINT job_limits_costs CHECK ((NOT jsonb_path_exists(limits, 'strict $.*?(((@.type() != "number" || @ < 1) || @ > 1000) || @ != @.floor())'::jsonpath, '{}'::jsonb, true))) NOT VALID;

ALTER TABLE rota.job
    ADD CONSTRAINT job_max_attempts_limit CHECK ((max_attempts <= 1000)) NOT VALID;

ALTER TABLE rota.job
    ADD CONSTRAINT job_max_losses_limit CHECK ((max_losses <= 1000)) NOT VALID;

ALTER TABLE rota.job
    ADD CONSTRAINT job_misfire_grace_most CHECK ((misfire_grace_ms <= (31 * (86400000)::bigint))) NOT VALID;

ALTER TABLE rota.job
    ADD CONSTRAINT job_objects CHECK (((jsonb_typeof(payload) = 'object'::text) AND (jsonb_typeof(labels) = 'object'::text) AND (jsonb_typeof(limits) = 'object'::text))) NOT VALID;

ALTER TABLE rota.job
    ADD CONSTRAINT job_pause_after_most CHECK ((pause_after <= 1000)) NOT VALID;

ALTER TABLE rota.job
    ADD CONSTRAINT job_payload_numbers CHECK (((octet_length((payload)::text) < 4300) OR (NOT jsonb_path_exists(payload, 'strict $.**?(@.type() == "number" && (@ >= 10000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000 || @ <= -10000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000))'::jsonpath, '{}'::jsonb, true)))) NOT VALID;

ALTER TABLE ONLY rota.job
    ADD CONSTRAINT job_pkey PRIMARY KEY (shard, job_uid);

ALTER TABLE rota.job
    ADD CONSTRAINT job_resume_missed_check CHECK ((resume_missed = ANY (ARRAY['policy'::text, 'drop'::text, 'once'::text, 'catch_up'::text]))) NOT VALID;

ALTER TABLE rota.job
    ADD CONSTRAINT job_retry_check CHECK (
CASE jsonb_typeof((retry -> 'factor'::text))
    WHEN 'number'::text THEN ((((retry ->> 'factor'::text))::numeric >= (1)::numeric) AND (((retry ->> 'factor'::text))::numeric <= (100)::numeric))
    ELSE ((retry -> 'factor'::text) IS NULL)
END) NOT VALID;

ALTER TABLE rota.job
    ADD CONSTRAINT job_retry_numbers CHECK (((jsonb_typeof(retry) = 'object'::text) AND (NOT jsonb_path_exists(retry, 'strict $.*?((@.type() != "number" || @ < 0) || @ > 2592000)'::jsonpath, '{}'::jsonb, true)))) NOT VALID;

ALTER TABLE rota.job
    ADD CONSTRAINT job_start_deadline_most CHECK ((start_deadline_ms <= (31 * (86400000)::bigint))) NOT VALID;

ALTER TABLE rota.job
    ADD CONSTRAINT job_timeout_ms_limit CHECK ((timeout_ms <= 604800000)) NOT VALID;

ALTER TABLE ONLY rota.lease
    ADD CONSTRAINT lease_pkey PRIMARY KEY (shard, job_uid, scheduled_for);

ALTER TABLE ONLY rota.limits
    ADD CONSTRAINT limits_pkey PRIMARY KEY (tenant_id, name);

ALTER TABLE ONLY rota.migration
    ADD CONSTRAINT migration_pkey PRIMARY KEY (version);

ALTER TABLE ONLY rota.pause_wanted
    ADD CONSTRAINT pause_wanted_pkey PRIMARY KEY (shard, job_uid);

ALTER TABLE ONLY rota.pending
    ADD CONSTRAINT pending_pkey PRIMARY KEY (shard, job_uid, scheduled_for);

ALTER TABLE ONLY rota.permit
    ADD CONSTRAINT permit_pkey PRIMARY KEY (limit_key, slot);

ALTER TABLE ONLY rota.pool
    ADD CONSTRAINT pool_pkey PRIMARY KEY (pool);

ALTER TABLE ONLY rota.run
    ADD CONSTRAINT run_pkey PRIMARY KEY (shard, job_uid, scheduled_for);

ALTER TABLE ONLY rota.saving
    ADD CONSTRAINT saving_pkey PRIMARY KEY (limit_key);

ALTER TABLE ONLY rota.schedule
    ADD CONSTRAINT schedule_pkey PRIMARY KEY (shard, job_uid);

ALTER TABLE ONLY rota.scheduler
    ADD CONSTRAINT scheduler_pkey PRIMARY KEY (scheduler_id);

ALTER TABLE ONLY rota.set_aside
    ADD CONSTRAINT set_aside_pkey PRIMARY KEY (shard, job_uid, what);

ALTER TABLE ONLY rota.shard
    ADD CONSTRAINT shard_pkey PRIMARY KEY (shard);

ALTER TABLE ONLY rota.skipped
    ADD CONSTRAINT skipped_pkey PRIMARY KEY (shard, job_uid, first_slot);

ALTER TABLE ONLY rota.tenant
    ADD CONSTRAINT tenant_pkey PRIMARY KEY (tenant_id);

ALTER TABLE ONLY rota.token
    ADD CONSTRAINT token_pkey PRIMARY KEY (token_id);

ALTER TABLE ONLY rota.worker
    ADD CONSTRAINT worker_pkey PRIMARY KEY (instance);

CREATE INDEX audit_by_subject ON rota.audit USING btree (tenant_id, subject, at, audit_id);

CREATE INDEX claim_age ON rota.claim USING btree (claimed_at);

CREATE INDEX dead_by_tenant ON rota.dead USING btree (tenant_id, died_at);

CREATE INDEX idempotency_age ON rota.idempotency USING btree (created_at);

CREATE INDEX job_by_name ON rota.job USING btree (tenant_id, job_id) WHERE (deleted_at IS NULL);

CREATE INDEX job_deleted ON rota.job USING btree (shard, tenant_id, job_id, generation) WHERE (deleted_at IS NOT NULL);

CREATE UNIQUE INDEX job_live ON rota.job USING btree (shard, tenant_id, job_id) WHERE (deleted_at IS NULL);

CREATE INDEX job_of_source ON rota.job USING btree (tenant_id, source) WHERE ((source IS NOT NULL) AND (deleted_at IS NULL));

CREATE INDEX job_resume ON rota.job USING btree (resume_at) WHERE (resume_at IS NOT NULL);

CREATE INDEX limits_by_name ON rota.limits USING btree (name);

CREATE INDEX limits_of_tenants ON rota.limits USING btree (tenant_id) WHERE (kind = 'tenant'::text);

CREATE INDEX pending_any_handler ON rota.pending USING btree (pool, tenant_id) WHERE ((gate = 'handler'::text) AND (handler <> ALL (ARRAY['shell'::text, 'http'::text])));

CREATE INDEX pending_deadline ON rota.pending USING btree (shard, deadline_at) WHERE (deadline_at IS NOT NULL);

CREATE INDEX pending_handler ON rota.pending USING btree (pool, handler, tenant_id) WHERE (gate = 'handler'::text);

CREATE INDEX pending_held ON rota.pending USING btree (pool, tenant_id) WHERE ((gate || ''::text) = ANY (ARRAY['time'::text, 'handler'::text, 'limit'::text]));

CREATE INDEX pending_limit ON rota.pending USING btree (limit_key, tenant_id, pool, rank) WITH (deduplicate_items=off) WHERE (gate = 'limit'::text);

CREATE INDEX pending_limit_pool ON rota.pending USING btree (limit_key, pool, tenant_id, rank) WITH (deduplicate_items=off) WHERE (gate = 'limit'::text);

CREATE INDEX pending_open ON rota.pending USING btree (pool, tenant_id, rank) WITH (deduplicate_items=off) WHERE (gate = 'open'::text);

CREATE INDEX pending_returned ON rota.pending USING btree (limit_key) WHERE ((gate = 'open'::text) AND (limit_key IS NOT NULL));

CREATE INDEX pending_time ON rota.pending USING btree (shard, available_at) WHERE (gate = 'time'::text);

CREATE INDEX run_created ON ONLY rota.run USING brin (created_at) WITH (pages_per_range='32');

CREATE INDEX schedule_due ON rota.schedule USING btree (shard, next_run_at) WHERE (next_run_at IS NOT NULL);

CREATE INDEX schedule_frozen ON rota.schedule USING btree (frozen_by) WHERE (frozen_by IS NOT NULL);

CREATE INDEX skipped_recorded ON rota.skipped USING btree (recorded_at);

CREATE INDEX token_by_parent ON rota.token USING btree (parent_id) WHERE (parent_id IS NOT NULL);

CREATE INDEX token_by_tenant ON rota.token USING btree (tenant_id, created_at);
