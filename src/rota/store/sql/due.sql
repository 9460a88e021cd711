-- name: due_schedules
-- Up to $per_shard due schedules of each shard with what their decision needs. LATERAL keeps each shard on its index;
-- one ORDER BY over all shards would sort the whole backlog. $floor keeps the scan off the index entries of slots made
-- already, which stay as long as an old transaction pins them. Jobs in $aside are left out: they take nobody's place.
SELECT d.shard, d.job_uid, d.next_run_at, d.next_slot, d.version,
       j.schedule, j.misfire, j.misfire_grace_ms, j.jitter_ms, j.overlap, j.start_deadline_ms,
       j.priority, j.pool, rota.handler_key(j.handler) AS handler, j.tenant_id,
       EXISTS (SELECT FROM rota.freeze f WHERE f.tenant_id IN ('*', j.tenant_id) AND f.lifted_at IS NULL) AS frozen
  FROM unnest($shards::smallint[]) sh
 CROSS JOIN LATERAL (
       SELECT shard, job_uid, next_run_at, next_slot, version FROM rota.schedule
        WHERE shard = sh AND next_run_at >= $floor AND next_run_at <= $now AND job_uid <> ALL ($aside::bigint[])
        ORDER BY next_run_at LIMIT $per_shard) d
 CROSS JOIN LATERAL (SELECT * FROM rota.job x WHERE x.shard = d.shard AND x.job_uid = d.job_uid LIMIT 1) j;

-- name: next_due
-- The earliest instant at which one of the shards has something to do: a slot to make, a gate to open, or a run that is
-- useless from then on. Jobs whose slots or whose runs are set aside count for nothing.
SELECT least(
  (SELECT min(d.next_run_at) FROM unnest($shards::smallint[]) sh CROSS JOIN LATERAL (
     SELECT next_run_at FROM rota.schedule
      WHERE shard = sh AND next_run_at >= $floor AND job_uid <> ALL ($aside::bigint[])
      ORDER BY next_run_at LIMIT 1) d),
  (SELECT min(t.available_at) FROM unnest($shards::smallint[]) sh CROSS JOIN LATERAL (
     SELECT available_at FROM rota.pending
      WHERE shard = sh AND gate = 'time' AND available_at >= $floor AND job_uid <> ALL ($runs_aside::bigint[])
      ORDER BY available_at LIMIT 1) t),
  (SELECT min(u.deadline_at) FROM unnest($shards::smallint[]) sh CROSS JOIN LATERAL (
     SELECT deadline_at FROM rota.pending
      WHERE shard = sh AND deadline_at >= $floor AND job_uid <> ALL ($runs_aside::bigint[])
      ORDER BY deadline_at LIMIT 1) u)) AS at;

-- name: live_among
-- Which of these jobs have a run that lives: for the overlap policy. A run lives from the time it may start: from its
-- slot on, whatever delays it then. One that is wanted at a slot to come does not live yet.
SELECT k.shard, k.job_uid
  FROM unnest($shards::smallint[], $job_uids::bigint[]) k (shard, job_uid)
 WHERE (SELECT true FROM rota.lease l WHERE l.shard = k.shard AND l.job_uid = k.job_uid LIMIT 1)
    -- Not EXISTS, which beside another condition is planned as a hash of all that wait.
    OR (SELECT true FROM rota.pending p
         WHERE p.shard = k.shard AND p.job_uid = k.job_uid AND least(p.scheduled_for, p.available_at) <= $now LIMIT 1);

-- name: materialise_runs
-- Advance schedules and make their runs, in one statement. A schedule that was edited or already advanced, or whose
-- shard has another owner or epoch by now, is left out with all its runs; a run that exists already is left as it is.
-- A new run of a job that lets only its newest slot wait supersedes the older slots' runs that never began, and with
-- "replace" asks for the end of those that run; rows that somebody is claiming or ending at this moment are passed over.
-- The arrays of such slots are empty for all other jobs, and cost them nothing.
-- An open transaction of somebody else may hold a slot's run or its schedule: nobody waits for it longer than $patience,
-- then the statement fails (55P03) and has written nothing. `owned` is looked at before any row is locked, so the
-- patience is in force by then.
-- NOT ... NOT IN stands where a join would do: no planner turns it into one, so it is hashed, whereas two CTEs of one
-- estimated row each were joined by a nested loop over 1,000 x 1,000 rows (90 of 105 ms a batch).
WITH patience AS MATERIALIZED (SELECT set_config('lock_timeout', $patience, true) AS is_set),
owned AS (
  SELECT s.shard FROM unnest($owned_shards::smallint[], $epochs::bigint[]) o (shard, epoch)
    JOIN rota.shard s ON s.shard = o.shard AND s.epoch = o.epoch AND s.owner = $owner
   WHERE (SELECT is_set FROM patience) <> ''),
advanced AS (
  UPDATE rota.schedule s SET next_run_at = d.then_slot, next_slot = d.then_slot
    FROM unnest($shards::smallint[], $job_uids::bigint[], $due_ats::timestamptz[], $versions::bigint[],
                $then_slots::timestamptz[]) d (shard, job_uid, due_at, version, then_slot)
   WHERE s.shard = d.shard AND s.job_uid = d.job_uid AND s.next_run_at = d.due_at AND s.version = d.version
     AND s.shard IN (SELECT shard FROM owned)
  RETURNING s.shard, s.job_uid),
wanted AS MATERIALIZED (
  SELECT r.* FROM unnest($run_shards::smallint[], $run_job_uids::bigint[], $run_slots::timestamptz[],
                         $run_available_ats::timestamptz[], $run_deadlines::timestamptz[], $run_gates::text[],
                         $run_pools::text[], $run_handlers::text[], $run_tenants::text[], $run_priorities::smallint[])
                  r (shard, job_uid, scheduled_for, available_at, deadline_at, gate, pool, handler, tenant_id, priority)
    JOIN advanced a ON a.shard = r.shard AND a.job_uid = r.job_uid),
made AS (
  INSERT INTO rota.run (shard, job_uid, scheduled_for, created_at, origin)
  SELECT shard, job_uid, scheduled_for, $now, 'schedule' FROM wanted
  ON CONFLICT (shard, job_uid, scheduled_for) DO NOTHING
  RETURNING shard, job_uid, scheduled_for),
queued AS (
  INSERT INTO rota.pending (shard, job_uid, scheduled_for, rank, available_at, attempt, gate, pool, handler, tenant_id,
                            priority, deadline_at, has_payload)
  SELECT w.shard, w.job_uid, w.scheduled_for, rota.rank_of(w.available_at, w.priority, w.pool), w.available_at, 0, w.gate,
         w.pool, w.handler, w.tenant_id, w.priority, w.deadline_at, false FROM wanted w
   WHERE NOT (w.shard, w.job_uid, w.scheduled_for) NOT IN (SELECT shard, job_uid, scheduled_for FROM made)),
newest AS MATERIALIZED (
  SELECT n.* FROM unnest($newest_shards::smallint[], $newest_job_uids::bigint[], $newest_slots::timestamptz[],
                         $newest_replaces::boolean[], $newest_reasons::text[])
                  n (shard, job_uid, scheduled_for, replaces, reason)
   WHERE NOT (n.shard, n.job_uid, n.scheduled_for) NOT IN (SELECT shard, job_uid, scheduled_for FROM made)),
older AS MATERIALIZED (
  SELECT p.at, p.run_table, p.run_at, n.shard, n.job_uid, p.scheduled_for, n.reason FROM newest n
   CROSS JOIN LATERAL (
         SELECT x.ctid AS at, x.scheduled_for, ran.run_table, ran.run_at FROM rota.pending x
          CROSS JOIN LATERAL (
                -- Somebody asked for a manual run, perhaps with a payload of its own: it keeps its turn.
                SELECT r.tableoid AS run_table, r.ctid AS run_at FROM rota.run r
                 WHERE r.shard = x.shard AND r.job_uid = x.job_uid AND r.scheduled_for = x.scheduled_for
                   AND r.origin = 'schedule'
                 LIMIT 1 FOR NO KEY UPDATE SKIP LOCKED) ran
          WHERE x.shard = n.shard AND x.job_uid = n.job_uid AND x.scheduled_for < n.scheduled_for
            -- A release and a snooze take the attempt back: what has an attempt on record has begun, and keeps its turn.
            AND x.attempt = 0 AND x.losses = 0
            AND NOT EXISTS (SELECT FROM rota.attempt a
                             WHERE a.shard = x.shard AND a.job_uid = x.job_uid AND a.scheduled_for = x.scheduled_for)
            FOR UPDATE OF x SKIP LOCKED) p),
superseded AS (
  DELETE FROM rota.pending WHERE ctid = ANY (ARRAY (SELECT at FROM older)) RETURNING shard, job_uid, scheduled_for),
cancelled AS (
  UPDATE rota.run r SET outcome = 'cancelled', finished_at = $now, attempt = 0, reason = o.reason
    FROM older o
   WHERE r.scheduled_for = o.scheduled_for AND r.tableoid = o.run_table AND r.ctid = o.run_at
     AND NOT (o.shard, o.job_uid, o.scheduled_for) NOT IN (SELECT shard, job_uid, scheduled_for FROM superseded)),
replaced AS (
  UPDATE rota.lease SET cancel_requested_at = $now WHERE ctid = ANY (ARRAY (
    SELECT l.ctid FROM newest n
     CROSS JOIN LATERAL (
           SELECT x.ctid FROM rota.lease x
            WHERE x.shard = n.shard AND x.job_uid = n.job_uid AND x.scheduled_for < n.scheduled_for
              AND x.cancel_requested_at IS NULL FOR NO KEY UPDATE SKIP LOCKED) l
     WHERE n.replaces))
  RETURNING shard),
noted AS (
  INSERT INTO rota.skipped AS z (shard, job_uid, first_slot, last_slot, slots, reason, policy, recorded_at)
  SELECT k.shard, k.job_uid, k.first_slot, k.last_slot, k.slots, k.reason, k.policy, $now
    FROM unnest($skip_shards::smallint[], $skip_job_uids::bigint[], $skip_firsts::timestamptz[],
                $skip_lasts::timestamptz[], $skip_counts::integer[], $skip_reasons::text[], $skip_policies::jsonb[])
         k (shard, job_uid, first_slot, last_slot, slots, reason, policy)
    JOIN advanced a ON a.shard = k.shard AND a.job_uid = k.job_uid
  ON CONFLICT (shard, job_uid, first_slot) DO UPDATE SET last_slot = excluded.last_slot, slots = excluded.slots
    WHERE z.last_slot < excluded.last_slot)
SELECT (SELECT count(*) FROM advanced) AS advanced, (SELECT count(*) FROM made) AS made,
       (SELECT count(*) FROM superseded) AS superseded, (SELECT count(*) FROM replaced) AS replaced;

-- name: ask_replaced
-- Ask once more for the end of what these slots replace: a run that was being claimed or renewed while they were made
-- could not be seen, or not locked.
UPDATE rota.lease SET cancel_requested_at = $now WHERE ctid = ANY (ARRAY (
  SELECT l.ctid FROM unnest($shards::smallint[], $job_uids::bigint[], $slots::timestamptz[]) n (shard, job_uid, slot)
   CROSS JOIN LATERAL (
         SELECT x.ctid FROM rota.lease x
          WHERE x.shard = n.shard AND x.job_uid = n.job_uid AND x.scheduled_for < n.slot
            AND x.cancel_requested_at IS NULL FOR NO KEY UPDATE SKIP LOCKED) l))
RETURNING shard;

-- name: held_slots
-- Which of these jobs' slots cannot be made just now, since somebody's open transaction holds the run or the schedule.
SELECT shard, job_uid FROM rota.held_slots($shards::smallint[], $job_uids::bigint[], $slots::timestamptz[]);

-- name: quarantine_schedules
-- Take schedules that cannot be computed or written out of the due scan, with the reason on their jobs. One whose rows
-- somebody else holds is left for another time: nobody is waited for.
WITH free AS MATERIALIZED (
  SELECT q.shard, q.job_uid, q.version, q.reason
    FROM unnest($shards::smallint[], $job_uids::bigint[], $versions::bigint[], $reasons::text[])
         q (shard, job_uid, version, reason)
   CROSS JOIN LATERAL (
         SELECT FROM rota.job j WHERE j.shard = q.shard AND j.job_uid = q.job_uid
          LIMIT 1 FOR NO KEY UPDATE SKIP LOCKED) job
   CROSS JOIN LATERAL (
         SELECT FROM rota.schedule s WHERE s.shard = q.shard AND s.job_uid = q.job_uid AND s.version = q.version
          LIMIT 1 FOR NO KEY UPDATE SKIP LOCKED) schedule),
stopped AS (
  UPDATE rota.schedule s SET next_run_at = NULL
    FROM free q WHERE s.shard = q.shard AND s.job_uid = q.job_uid AND s.version = q.version
  RETURNING s.shard, s.job_uid, q.reason)
UPDATE rota.job j SET quarantined = stopped.reason
  FROM stopped WHERE j.shard = stopped.shard AND j.job_uid = stopped.job_uid
RETURNING j.job_id, j.job_uid;

-- name: newest_tzdata
-- The newest tz data that a live scheduler or worker reads its zones from; NULL: there is none.
SELECT max(v COLLATE "C") AS tzdata FROM (
  SELECT tzdata AS v FROM rota.scheduler WHERE expires_at > $now
  UNION ALL SELECT tzdata FROM rota.worker WHERE expires_at > $now) live;

-- name: open_due_gates
-- Let runs through whose time has come: backoff, snooze or jitter is over. Jobs in $aside are left out; $only is the one
-- job that is meant, or NULL.
UPDATE rota.pending SET gate = 'open'
 WHERE ctid = ANY (ARRAY (
       SELECT due.ctid FROM unnest($shards::smallint[]) sh
        CROSS JOIN LATERAL (
              SELECT p.ctid FROM rota.pending p
               WHERE p.shard = sh AND p.gate = 'time' AND p.available_at >= $floor AND p.available_at <= $now
                 AND p.job_uid <> ALL ($aside::bigint[]) AND ($only::bigint IS NULL OR p.job_uid = $only)
               ORDER BY p.available_at LIMIT $per_shard FOR UPDATE SKIP LOCKED) due))
RETURNING pool;

-- name: due_gates
-- The jobs that the next look at the gates would touch.
SELECT DISTINCT due.shard, due.job_uid FROM unnest($shards::smallint[]) sh
 CROSS JOIN LATERAL (
       SELECT p.shard, p.job_uid FROM rota.pending p
        WHERE p.shard = sh AND p.gate = 'time' AND p.available_at >= $floor AND p.available_at <= $now
          AND p.job_uid <> ALL ($aside::bigint[])
        ORDER BY p.available_at LIMIT $per_shard) due;

-- name: expire_runs
-- End runs whose start deadline passed before they began: out of the queue, cancelled with the reason, and in the slot
-- ledger those that were a slot's, in one statement. A run that has begun has no deadline any more. Jobs in $aside are
-- left out; $only is the one job that is meant, or NULL. A run that somebody holds is passed over.
WITH patience AS MATERIALIZED (SELECT set_config('lock_timeout', $patience, true) AS is_set),
late AS MATERIALIZED (
  SELECT p.* FROM unnest($shards::smallint[]) sh
   CROSS JOIN LATERAL (
         SELECT x.ctid AS at, x.shard, x.job_uid, x.scheduled_for, x.deadline_at, ran.run_table, ran.run_at
           FROM rota.pending x
          CROSS JOIN LATERAL (
                SELECT r.tableoid AS run_table, r.ctid AS run_at FROM rota.run r
                 WHERE r.shard = x.shard AND r.job_uid = x.job_uid AND r.scheduled_for = x.scheduled_for
                 LIMIT 1 FOR NO KEY UPDATE SKIP LOCKED) ran
          WHERE x.shard = sh AND x.deadline_at >= $floor AND x.deadline_at <= $now
            AND x.job_uid <> ALL ($aside::bigint[]) AND ($only::bigint IS NULL OR x.job_uid = $only)
          ORDER BY x.deadline_at LIMIT $per_shard FOR UPDATE OF x SKIP LOCKED) p
   WHERE (SELECT is_set FROM patience) <> ''),
gone AS (
  DELETE FROM rota.pending WHERE ctid = ANY (ARRAY (SELECT at FROM late)) RETURNING shard, job_uid, scheduled_for),
expired AS (
  UPDATE rota.run r SET outcome = 'cancelled', finished_at = $now, attempt = 0,
         -- A manual run's time begins when it is asked for, or at a slot to come.
         reason = format('start deadline passed: not started within %s s', trim_scale(extract(epoch FROM
           late.deadline_at - CASE r.origin WHEN 'manual' THEN greatest(r.scheduled_for, r.created_at)
                                            ELSE r.scheduled_for END)))
    FROM late
   WHERE r.scheduled_for = late.scheduled_for AND r.tableoid = late.run_table AND r.ctid = late.run_at
     AND NOT (late.shard, late.job_uid, late.scheduled_for) NOT IN (SELECT shard, job_uid, scheduled_for FROM gone)
  RETURNING r.shard, r.job_uid, r.scheduled_for, r.origin, r.reason),
noted AS (
  INSERT INTO rota.skipped AS z (shard, job_uid, first_slot, last_slot, slots, reason, policy, recorded_at)
  SELECT shard, job_uid, scheduled_for, scheduled_for, 1, 'start_deadline', jsonb_build_object('reason', reason), $now
    FROM expired WHERE origin = 'schedule'
  ON CONFLICT (shard, job_uid, first_slot) DO UPDATE SET last_slot = excluded.last_slot, slots = excluded.slots
    WHERE z.last_slot < excluded.last_slot)
SELECT shard, job_uid, scheduled_for, reason FROM expired;

-- name: late_runs
-- The jobs that the next look for passed start deadlines would touch.
SELECT DISTINCT late.shard, late.job_uid FROM unnest($shards::smallint[]) sh
 CROSS JOIN LATERAL (
       SELECT x.shard, x.job_uid FROM rota.pending x
        WHERE x.shard = sh AND x.deadline_at >= $floor AND x.deadline_at <= $now AND x.job_uid <> ALL ($aside::bigint[])
        ORDER BY x.deadline_at LIMIT $per_shard) late;
