-- Runs made and finished in transactions of the caller's own: functions that any client of this database can call.
-- They run with the caller's rights, and what they did is gone if the caller's transaction does not commit.
-- Each names the schema of all that it uses and has a search_path of its own, so that nobody can put a table or an
-- operator of his in the way. They refuse with a hint and a SQLSTATE of class RT: RT404 no such job, RT409 lease lost,
-- RT410 slot taken, RT411 key reused, RT422 invalid input. rota.transactional makes errors of Rota from them.

CREATE FUNCTION rota.request_hash(job_id text, scheduled_for timestamptz, payload jsonb) RETURNS bytea
  LANGUAGE sql IMMUTABLE PARALLEL SAFE SET search_path = pg_catalog, pg_temp
AS $$
  -- The text of jsonb is the same for every way to write a value.
  SELECT sha256(convert_to(
    jsonb_build_array(job_id, (extract(epoch FROM scheduled_for) * 1000)::bigint, payload)::text, 'UTF8'))
$$;
COMMENT ON FUNCTION rota.request_hash IS 'What a request under an Idempotency-Key must equal to be the same request.';

CREATE FUNCTION rota.instant_text(instant timestamptz) RETURNS text
  LANGUAGE sql STABLE STRICT PARALLEL SAFE SET search_path = pg_catalog, pg_temp
AS $$
  SELECT to_char(instant AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"')
$$;
COMMENT ON FUNCTION rota.instant_text IS 'An instant as ISO 8601 in UTC, whatever the session''s zone and style of dates.';

CREATE FUNCTION rota.slot_of(run_id uuid, OUT job_uid bigint, OUT scheduled_for timestamptz)
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

CREATE FUNCTION rota.trigger(job_id text, payload jsonb DEFAULT NULL, tenant_id text DEFAULT 'default',
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
  -- Priority with ageing, as rota.domain.admission counts it: a minute for each point.
  INSERT INTO rota.pending (shard, job_uid, scheduled_for, rank, available_at, attempt, gate, pool, handler, tenant_id)
  VALUES (job.shard, job.job_uid, slot, (extract(epoch FROM available_at) * 1000)::bigint - job.priority * 60000,
          available_at, 0, CASE WHEN available_at > now_at THEN 'time' ELSE 'open' END, job.pool,
          rota.handler_key(job.handler), wanted_tenant);
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
COMMENT ON FUNCTION rota.trigger IS
  'Make one run of a job in the caller''s own transaction, now or at a slot; returns its id.';

CREATE FUNCTION rota.check_request(job_id text, tenant_id text, payload jsonb, scheduled_for timestamptz,
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

CREATE FUNCTION rota.complete(run_id uuid, lease_token uuid, result jsonb DEFAULT NULL) RETURNS void
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
COMMENT ON FUNCTION rota.complete IS
  'Finish a run in the caller''s own transaction, with its other writes: succeeded if that commits. Commit soon after.';
