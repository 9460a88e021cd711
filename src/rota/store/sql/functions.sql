-- The functions and views of the database, as they are: each migrate that finds another text in force replaces all of them.
-- They are changed here, and never in a migration; a view's new columns come last. What processes of the version before
-- call keeps its signature; a signature that nobody calls any more is dropped by a migration.

CREATE OR REPLACE FUNCTION rota.run_id(job_uid bigint, scheduled_for timestamptz) RETURNS uuid
  LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
RETURN (lpad(to_hex((extract(epoch FROM scheduled_for AT TIME ZONE 'UTC') * 1000)::bigint), 12, '0') || '8000'
        || to_hex(job_uid | (1::bigint << 63)))::uuid;
COMMENT ON FUNCTION rota.run_id IS 'The run''s UUID (version 8): 48 bits of milliseconds, then 62 bits of job_uid.';

CREATE OR REPLACE FUNCTION rota.slot_of(run_id uuid, OUT job_uid bigint, OUT scheduled_for timestamptz)
  LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE SET search_path = pg_catalog, pg_temp
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
COMMENT ON FUNCTION rota.slot_of IS 'The job''s number and the slot that a run''s id holds; the inverse of rota.run_id.';

CREATE OR REPLACE FUNCTION rota.instant_text(instant timestamptz) RETURNS text
  LANGUAGE sql STABLE STRICT PARALLEL SAFE SET search_path = pg_catalog, pg_temp
AS $$
  SELECT to_char(instant AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"')
$$;
COMMENT ON FUNCTION rota.instant_text IS 'An instant as ISO 8601 in UTC, whatever the session''s zone and style of dates.';

CREATE OR REPLACE FUNCTION rota.handler_key(handler text) RETURNS text
  LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN CASE WHEN handler ~ '^https?://' THEN 'http' ELSE handler END;
COMMENT ON FUNCTION rota.handler_key IS 'What a worker must know to run a handler: its name, or "http" for every HTTP target.';

CREATE OR REPLACE FUNCTION rota.request_hash(job_id text, scheduled_for timestamptz, payload jsonb) RETURNS bytea
  LANGUAGE sql STABLE PARALLEL SAFE
-- The text of jsonb is the same for every way to write a value.
RETURN sha256(convert_to(
  jsonb_build_array(job_id, (extract(epoch FROM scheduled_for) * 1000)::bigint, payload)::text, 'UTF8'));
COMMENT ON FUNCTION rota.request_hash IS 'What a request under an Idempotency-Key must equal to be the same request.';

CREATE OR REPLACE FUNCTION rota.rank_of(available_at timestamptz, priority integer, pool text) RETURNS bigint
  LANGUAGE sql STABLE PARALLEL SAFE
RETURN floor(extract(epoch FROM available_at) * 1000)::bigint
       - priority * coalesce((SELECT p.ageing_ms FROM rota.pool p WHERE p.pool = rank_of.pool), 60000);
COMMENT ON FUNCTION rota.rank_of IS 'Priority with ageing as one number, smaller first: see rota.domain.admission.rank.';

CREATE OR REPLACE FUNCTION rota.tokens_at(instant timestamptz, burst integer, rate double precision, tokens double precision,
                               refilled_at timestamptz) RETURNS double precision
  LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN least(burst, tokens + rate * greatest(0, extract(epoch FROM instant - refilled_at)::double precision));
COMMENT ON FUNCTION rota.tokens_at IS 'What a bucket holds at an instant; one that nobody has used yet, with NULL tokens, is full.';

CREATE OR REPLACE FUNCTION rota.limits_on(tenant_id text, job_uid bigint, overlap text, max_concurrency integer, concurrency_key text,
                               key_concurrency integer, limits jsonb, payload jsonb)
RETURNS TABLE (limit_key text, name text, owner text, kind text, weight integer, permits integer,
               rate double precision, burst integer)
  LANGUAGE sql STABLE PARALLEL SAFE ROWS 2
BEGIN ATOMIC
  SELECT format('job/%s', limits_on.job_uid), NULL::text, NULL::text, 'job', 1,
         CASE WHEN limits_on.overlap <> 'allow' THEN 1 ELSE limits_on.max_concurrency END,
         NULL::double precision, NULL::integer
   WHERE limits_on.overlap <> 'allow' OR limits_on.max_concurrency IS NOT NULL
  UNION ALL
  SELECT format('key/%s/%s', limits_on.job_uid, md5(keyed.value)), NULL, NULL, 'key', 1, limits_on.key_concurrency, NULL, NULL
    -- The path is the text after "payload.".
    FROM (SELECT limits_on.payload #>> string_to_array(substr(limits_on.concurrency_key, 9), '.')) keyed (value)
   WHERE keyed.value IS NOT NULL
  UNION ALL
  SELECT format('downstream/%s/%s', l.tenant_id, l.name), l.name, l.tenant_id, l.kind,
         CASE WHEN wanted.value ~ '^[1-9][0-9]{0,8}$' THEN wanted.value::integer END, l.permits, l.rate, l.burst
    -- Costs that somebody's SQL has damaged are none: they must not stop every claim of the pool.
    FROM jsonb_each_text(CASE jsonb_typeof(limits_on.limits) WHEN 'object' THEN limits_on.limits END) wanted
   CROSS JOIN LATERAL (
         SELECT x.* FROM rota.limits x
          WHERE x.tenant_id IN (limits_on.tenant_id, '*') AND x.name = wanted.key AND x.kind = 'downstream'
          ORDER BY x.tenant_id = '*' LIMIT 1) l
   WHERE limits_on.limits <> '{}' AND wanted.value ~ '^[1-9][0-9]{0,8}$'
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

CREATE OR REPLACE FUNCTION rota.numbers_of(limit_key text)
RETURNS TABLE (permits integer, rate double precision, burst integer)
  LANGUAGE sql STABLE PARALLEL SAFE ROWS 1
BEGIN ATOMIC
  -- No limit has a slash in its name; tenants may. A tenant's own limit stands in the place of the operator's.
  (SELECT l.permits, l.rate, l.burst
     FROM (SELECT split_part(numbers_of.limit_key, '/', 1) AS kind,
                  substring(numbers_of.limit_key FROM '^[^/]*/(.*)/[^/]*$') AS owner,
                  substring(numbers_of.limit_key FROM '[^/]*$') AS name) k
    CROSS JOIN LATERAL (
          SELECT x.* FROM rota.limits x
           WHERE x.tenant_id IN (k.owner, CASE k.kind WHEN 'tenant' THEN '*' ELSE k.owner END) AND x.name = k.name
             AND x.kind = k.kind
           ORDER BY x.tenant_id = '*' LIMIT 1) l)
  UNION ALL
  (SELECT j.permits, NULL, NULL
     FROM (SELECT split_part(numbers_of.limit_key, '/', 1) AS kind,
                  CASE WHEN numbers_of.limit_key ~ '^(job|key)/[0-9]{1,19}(/|$)'
                       THEN split_part(numbers_of.limit_key, '/', 2)::bigint END AS job_uid) k
    CROSS JOIN LATERAL (
          SELECT CASE WHEN k.kind = 'key' THEN CASE WHEN x.concurrency_key IS NOT NULL THEN x.key_concurrency END
                      WHEN x.overlap <> 'allow' THEN 1
                      ELSE x.max_concurrency END AS permits
            FROM rota.job x
           WHERE x.shard = (k.job_uid % (SELECT c.shard_count FROM rota.cluster c))::smallint AND x.job_uid = k.job_uid
           LIMIT 1) j);
END;
COMMENT ON FUNCTION rota.numbers_of IS
  'The numbers of now of the limit that a key stands for, as limits_on says them; no row, or only NULL: it is no more.';

CREATE OR REPLACE FUNCTION rota.ensure_month(month date) RETURNS integer
  LANGUAGE plpgsql SET lock_timeout = '1s'
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
COMMENT ON FUNCTION rota.ensure_month IS
  'Make the month''s partitions (UTC) unless they are there; returns how many. Commit at once: it locks run_far.';

CREATE OR REPLACE FUNCTION rota.held_slots(shards smallint[], job_uids bigint[], slots timestamptz[])
  RETURNS TABLE (shard smallint, job_uid bigint)
  LANGUAGE plpgsql SET lock_timeout = '1ms'
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
COMMENT ON FUNCTION rota.held_slots IS
  'Which of these jobs'' slots cannot be made at once, since an open transaction holds the run or the schedule.';

CREATE OR REPLACE FUNCTION rota.has_long_number(value jsonb) RETURNS boolean
  LANGUAGE sql IMMUTABLE PARALLEL SAFE SET search_path = pg_catalog, pg_temp
AS $$
  SELECT octet_length(value::text) > 4300
     AND jsonb_path_exists(value, 'strict $.** ? (@.type() == "number" && (@ >= 1e4300 || @ <= -1e4300))', '{}', true)
$$;
COMMENT ON FUNCTION rota.has_long_number IS 'Whether JSON holds a whole number with more digits than Python reads.';

CREATE OR REPLACE FUNCTION rota.check_request(job_id text, tenant_id text, payload jsonb, scheduled_for timestamptz,
                                   idempotency_key text) RETURNS void
  LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp
AS $$
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
$$;
COMMENT ON FUNCTION rota.check_request IS 'Refuse a request for a run that could not be kept, naming what is wrong with it.';

CREATE OR REPLACE FUNCTION rota.may_name(schedule jsonb, instant timestamptz) RETURNS boolean
  LANGUAGE sql STABLE PARALLEL SAFE
RETURN CASE
  WHEN schedule IS NULL THEN false
  WHEN schedule ->> 'kind' = 'once' THEN instant = (schedule ->> 'at')::timestamptz
  WHEN schedule ->> 'kind' = 'interval' AND schedule ->> 'every' ~ '^([0-9]{1,7}d)?([0-9]+h)?([0-9]+m)?([0-9]+s)?([0-9]+ms)?$'
       AND schedule ->> 'every' ~ '[1-9]' THEN
    mod(round(extract(epoch FROM instant - coalesce(schedule ->> 'anchor', 'epoch')::timestamptz) * 1000),
        round(extract(epoch FROM (schedule ->> 'every')::interval) * 1000)) = 0
  -- Cron names whole seconds.
  ELSE instant = date_trunc('second', instant) END;
COMMENT ON FUNCTION rota.may_name IS 'Whether a schedule may have a slot at an instant; false: it certainly has none.';

CREATE OR REPLACE FUNCTION rota.is_free_lot(job_uid bigint, slot timestamptz) RETURNS boolean
  LANGUAGE sql VOLATILE
RETURN CASE WHEN pg_try_advisory_lock_shared((is_free_lot.job_uid % 2147483647)::integer,
                                             floor(extract(epoch FROM is_free_lot.slot) / 16)::integer)
            THEN pg_advisory_unlock_shared((is_free_lot.job_uid % 2147483647)::integer,
                                           floor(extract(epoch FROM is_free_lot.slot) / 16)::integer)
            ELSE false END;
COMMENT ON FUNCTION rota.is_free_lot IS
  'Whether no open transaction of somebody else makes many runs of a job about an instant: see rota.free_slots.';

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

CREATE OR REPLACE FUNCTION rota.ring(pool text) RETURNS void
  LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
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
COMMENT ON FUNCTION rota.ring IS
  'Tell those who wait for a pool''s runs, as soon as this transaction has committed; silent where nobody waits.';

CREATE OR REPLACE FUNCTION rota.free_slots(job rota.job, now_at timestamptz, wanted integer, beside timestamptz[])
  RETURNS timestamptz[]
  LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
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
COMMENT ON FUNCTION rota.free_slots IS
  'Instants for runs of a job that are asked for at once: free ones, none that its schedule names, and none of others beside.';

CREATE OR REPLACE FUNCTION rota.make_runs(job rota.job, payloads jsonb[], slots timestamptz[], keys text[], now_at timestamptz,
                               actor text)
  RETURNS TABLE (item integer, run_id uuid, scheduled_for timestamptz, outcome text)
  LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
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
COMMENT ON FUNCTION rota.make_runs IS
  'Make runs of a locked job, and say of each item: created, repeated (its key''s run), reused (its key stands for another request), or taken (its slot has a run).';

CREATE OR REPLACE FUNCTION rota.trigger_many(job_id text, payloads jsonb[], tenant_id text DEFAULT 'default',
                                  idempotency_keys text[] DEFAULT NULL) RETURNS SETOF uuid
  LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
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
COMMENT ON FUNCTION rota.trigger_many IS
  'Make many runs of a job in the caller''s own transaction; returns their ids in the order of the payloads. All or none.';

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
$$;

-- what people read -------------------------------------------------------------------------------------------------

CREATE OR REPLACE VIEW rota.job_run AS
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
       r.finished_at, coalesce(r.reason, l.set_apart) AS reason,
       -- That of its last attempt; of a run that waits, what it is to run with.
       coalesce(r.payload,
         CASE WHEN j.payload_since = 1 OR r.outcome IS NULL AND l.token IS NULL THEN j.payload
              ELSE (SELECT CASE WHEN ran.version < j.payload_since THEN (
                             SELECT f.payload FROM rota.former_payload f
                              WHERE f.shard = r.shard AND f.job_uid = r.job_uid AND f.since <= ran.version
                              ORDER BY f.since DESC LIMIT 1) ELSE j.payload END
                      FROM (SELECT coalesce(l.job_version, (
                              SELECT a.job_version FROM rota.attempt a
                               WHERE a.shard = r.shard AND a.job_uid = r.job_uid AND a.scheduled_for = r.scheduled_for
                               ORDER BY a.ended_at DESC LIMIT 1)) AS version) ran) END) AS payload, r.result
  FROM rota.run r
  LEFT JOIN rota.job j ON j.shard = r.shard AND j.job_uid = r.job_uid
  LEFT JOIN rota.pending p ON p.shard = r.shard AND p.job_uid = r.job_uid AND p.scheduled_for = r.scheduled_for
  LEFT JOIN rota.lease l ON l.shard = r.shard AND l.job_uid = r.job_uid AND l.scheduled_for = r.scheduled_for;

CREATE OR REPLACE VIEW rota.run_attempt AS
SELECT rota.run_id(a.job_uid, a.scheduled_for) AS run_id,
       j.tenant_id, j.job_id, a.scheduled_for, a.shard, a.job_uid,
       a.attempt, a.outcome, a.worker_id, a.claimed_at AS started_at, a.ended_at, a.error, a.job_version,
       a.progress, a.progress_note
  FROM rota.attempt a
  LEFT JOIN rota.job j ON j.shard = a.shard AND j.job_uid = a.job_uid;
