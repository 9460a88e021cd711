-- name: trigger_run
-- Make one run on request. No row: the slot is taken, since a slot is a run's identity, or the job is deleted. The job's
-- row is locked against an edit or a delete, whose own sweep over the waiting runs could not see this one.
WITH live AS (
  SELECT shard, job_uid, pool, rota.handler_key(handler) AS handler, tenant_id, priority, start_deadline_ms FROM rota.job
   WHERE shard = $shard AND job_uid = $job_uid AND deleted_at IS NULL FOR SHARE),
made AS (
  INSERT INTO rota.run (shard, job_uid, scheduled_for, created_at, origin, payload)
  SELECT shard, job_uid, $scheduled_for, $now, 'manual', $payload::jsonb FROM live
  ON CONFLICT (shard, job_uid, scheduled_for) DO NOTHING
  RETURNING shard, job_uid, scheduled_for),
noted AS (
  INSERT INTO rota.audit (tenant_id, at, audit_id, actor, action, subject, after)
  SELECT live.tenant_id, $now, $audit_id, $actor, 'run.triggered', rota.run_id(m.job_uid, m.scheduled_for)::text,
         $facts::jsonb
    FROM made m JOIN live ON live.shard = m.shard AND live.job_uid = m.job_uid)
INSERT INTO rota.pending (shard, job_uid, scheduled_for, rank, available_at, attempt, gate, pool, handler, tenant_id,
                          priority, deadline_at, has_payload)
SELECT m.shard, m.job_uid, m.scheduled_for, rota.rank_of($available_at, live.priority, live.pool), $available_at, 0, $gate,
       live.pool, live.handler, live.tenant_id, live.priority,
       $available_at::timestamptz + live.start_deadline_ms * interval '1 ms', $payload::jsonb IS NOT NULL
  FROM made m JOIN live ON live.shard = m.shard AND live.job_uid = m.job_uid
RETURNING pool;

-- name: hold_key
-- Let a key stand for a request, in the transaction that makes its run. No row: it stands for one already.
INSERT INTO rota.idempotency (tenant_id, key, request_hash, run_id, created_at)
VALUES ($tenant_id, $key, rota.request_hash($job_id, $scheduled_for, $payload::jsonb), $run_id, $now)
ON CONFLICT (tenant_id, key) DO NOTHING
RETURNING run_id;

-- name: point_key
-- The run of a key that this transaction holds got another slot than was tried first.
UPDATE rota.idempotency SET run_id = $run_id WHERE tenant_id = $tenant_id AND key = $key RETURNING run_id;

-- name: find_key
-- The run that a key stands for, and whether it stands for this very request.
SELECT run_id, created_at,
       request_hash = rota.request_hash($job_id, $scheduled_for, $payload::jsonb) AS is_same
  FROM rota.idempotency WHERE tenant_id = $tenant_id AND key = $key;

-- name: find_keys
-- The runs that keys stand for, and whether each stands for the very request that is asked about.
SELECT t.item - 1 AS item, i.run_id, i.created_at,
       i.request_hash = rota.request_hash(t.job_id, t.scheduled_for, t.payload::jsonb) AS is_same
  FROM unnest($keys::text[], $job_ids::text[], $slots::timestamptz[], $payloads::text[]) WITH ORDINALITY
       t (key, job_id, scheduled_for, payload, item)
 CROSS JOIN LATERAL (
       SELECT x.* FROM rota.idempotency x WHERE x.tenant_id = $tenant_id AND x.key = t.key LIMIT 1) i;

-- name: make_runs
-- Make runs on request, and say of each item what it came to. No row: one of the jobs is deleted, and nothing is made.
-- The jobs' rows are locked, in their order, against an edit or a delete, whose own sweep over the waiting runs could not
-- see these.
WITH wanted AS MATERIALIZED (
  SELECT t.shard, t.job_uid, array_agg(t.item ORDER BY t.item) AS items,
         array_agg(t.payload::jsonb ORDER BY t.item) AS payloads,
         CASE WHEN count(t.slot) > 0 THEN array_agg(t.slot ORDER BY t.item) END AS slots,
         CASE WHEN count(t.key) > 0 THEN array_agg(t.key ORDER BY t.item) END AS keys
    FROM unnest($shards::smallint[], $job_uids::bigint[], $payloads::text[], $slots::timestamptz[], $keys::text[])
         WITH ORDINALITY t (shard, job_uid, payload, slot, key, item)
   GROUP BY t.shard, t.job_uid),
live AS MATERIALIZED (
  SELECT j AS job, w.items, w.payloads, w.slots, w.keys
    FROM wanted w JOIN rota.job j ON j.shard = w.shard AND j.job_uid = w.job_uid
   WHERE j.deleted_at IS NULL ORDER BY j.shard, j.job_uid FOR SHARE OF j)
SELECT l.items[m.item] - 1 AS item, m.run_id, m.scheduled_for, m.outcome
  FROM (SELECT * FROM live WHERE (SELECT count(*) FROM live) = (SELECT count(*) FROM wanted)) l
 CROSS JOIN LATERAL rota.make_runs(l.job, l.payloads, l.slots, l.keys, $now, $actor) m;

-- name: forget_keys
-- Forget keys that were made before an instant, oldest first.
DELETE FROM rota.idempotency
 WHERE created_at < $before
   AND ctid = ANY (ARRAY (SELECT ctid FROM rota.idempotency WHERE created_at < $before ORDER BY created_at LIMIT $limit))
RETURNING tenant_id;

-- name: replay_dead
-- Send dead letters back to the queue with the attempts they have had. A run that is no dead letter (any more), whose
-- job is deleted, or which is not the given tenant's, is left out. Letters are taken by ctid: two that replay the same
-- ones lock them in one order.
WITH live AS MATERIALIZED (
  SELECT k.shard, k.job_uid, k.scheduled_for, k.available_at, k.gate, k.audit_id, j.priority, j.pool,
         rota.handler_key(j.handler) AS handler, j.tenant_id, j.job_id
    FROM unnest($shards::smallint[], $job_uids::bigint[], $slots::timestamptz[], $available_ats::timestamptz[],
                $gates::text[], $audit_ids::uuid[])
         k (shard, job_uid, scheduled_for, available_at, gate, audit_id)
    JOIN rota.job j ON j.shard = k.shard AND j.job_uid = k.job_uid
   WHERE j.deleted_at IS NULL AND ($tenant_id::text IS NULL OR j.tenant_id = $tenant_id) FOR SHARE OF j),
raised AS (
  DELETE FROM rota.dead WHERE ctid = ANY (ARRAY (
    SELECT letter.ctid FROM live
     CROSS JOIN LATERAL (
           SELECT d.ctid FROM rota.dead d
            WHERE d.shard = live.shard AND d.job_uid = live.job_uid AND d.scheduled_for = live.scheduled_for
            LIMIT 1) letter))
  RETURNING shard, job_uid, scheduled_for),
reopened AS (
  UPDATE rota.run r SET outcome = NULL, finished_at = NULL, reason = NULL
    FROM raised d
   CROSS JOIN LATERAL (
         SELECT x.tableoid, x.ctid FROM rota.run x
          WHERE x.shard = d.shard AND x.job_uid = d.job_uid AND x.scheduled_for = d.scheduled_for LIMIT 1) at
   WHERE r.scheduled_for = d.scheduled_for AND r.tableoid = at.tableoid AND r.ctid = at.ctid AND r.outcome = 'dead'
  RETURNING r.shard, r.job_uid, r.scheduled_for, r.attempt),
noted AS (
  INSERT INTO rota.audit (tenant_id, at, audit_id, actor, action, subject, after)
  SELECT live.tenant_id, $now, live.audit_id, $actor, 'run.replayed', rota.run_id(o.job_uid, o.scheduled_for)::text,
         jsonb_build_object('job_id', live.job_id, 'attempt', o.attempt)
    FROM reopened o
    JOIN live ON live.shard = o.shard AND live.job_uid = o.job_uid AND live.scheduled_for = o.scheduled_for)
INSERT INTO rota.pending (shard, job_uid, scheduled_for, rank, available_at, attempt, losses, gate, pool, handler,
                          tenant_id, priority)
SELECT o.shard, o.job_uid, o.scheduled_for, rota.rank_of(live.available_at, live.priority, live.pool), live.available_at,
       o.attempt, (SELECT count(*) FROM rota.attempt a
                    WHERE a.shard = o.shard AND a.job_uid = o.job_uid AND a.scheduled_for = o.scheduled_for
                      AND a.outcome = 'lost'), live.gate, live.pool, live.handler, live.tenant_id, live.priority
  FROM reopened o
  JOIN live ON live.shard = o.shard AND live.job_uid = o.job_uid AND live.scheduled_for = o.scheduled_for
RETURNING shard, job_uid, scheduled_for, available_at, pool, gate;

-- name: matching_dead
-- A tenant's dead letters that a filter means and whose jobs still exist, the longest dead first.
SELECT d.job_uid, d.scheduled_for
  FROM rota.dead d JOIN rota.job j ON j.shard = d.shard AND j.job_uid = d.job_uid
 WHERE d.tenant_id = $tenant_id AND d.died_at >= $since AND d.died_at < $until AND j.deleted_at IS NULL
   AND ($job_id = '' OR j.job_id = $job_id) AND ($handler = '' OR j.handler = $handler)
   AND ($label = '' OR CASE WHEN $label_value::text IS NULL THEN j.labels ? $label
                            ELSE j.labels ->> $label = $label_value END)
   AND (NOT $failed::boolean OR (
        SELECT true FROM rota.attempt a
         WHERE a.shard = d.shard AND a.job_uid = d.job_uid AND a.scheduled_for = d.scheduled_for
           AND a.outcome IN ('failed', 'timed_out', 'gave_up', 'lost') LIMIT 1))
   AND ($error = '' OR strpos(lower((
        SELECT a.error FROM rota.attempt a
         WHERE a.shard = d.shard AND a.job_uid = d.job_uid AND a.scheduled_for = d.scheduled_for
         ORDER BY a.ended_at DESC LIMIT 1)), lower($error)) > 0)
 ORDER BY d.died_at, d.job_uid, d.scheduled_for LIMIT $limit;

-- name: cancel_run
-- End a run that waits, or ask for the end of one that runs. No row: there is no such run, or it is not the given
-- tenant's. Neither done, and no outcome: it was claimed or put back at this very moment, so ask again.
WITH subject AS (
  SELECT r.outcome, r.job_uid, r.scheduled_for, coalesce(j.tenant_id, '') AS tenant_id, j.job_id
    FROM rota.run r LEFT JOIN rota.job j ON j.shard = r.shard AND j.job_uid = r.job_uid
   WHERE r.shard = $shard AND r.job_uid = $job_uid AND r.scheduled_for = $scheduled_for
     AND ($tenant_id::text IS NULL OR j.tenant_id = $tenant_id)),
gone AS (
  DELETE FROM rota.pending
   WHERE shard = $shard AND job_uid = $job_uid AND scheduled_for = $scheduled_for AND EXISTS (SELECT FROM subject)
  RETURNING attempt),
finished AS (
  UPDATE rota.run r SET outcome = 'cancelled', finished_at = $now, attempt = gone.attempt, reason = $reason
    FROM gone
   WHERE r.shard = $shard AND r.job_uid = $job_uid AND r.scheduled_for = $scheduled_for AND r.outcome IS NULL
  RETURNING r.scheduled_for),
asked AS (
  UPDATE rota.lease SET cancel_requested_at = coalesce(cancel_requested_at, $now)
   WHERE shard = $shard AND job_uid = $job_uid AND scheduled_for = $scheduled_for AND EXISTS (SELECT FROM subject)
  RETURNING cancel_requested_at = $now AS is_new),
noted AS (
  INSERT INTO rota.audit (tenant_id, at, audit_id, actor, action, subject, after)
  SELECT s.tenant_id, $now, $audit_id, $actor, what.action, rota.run_id(s.job_uid, s.scheduled_for)::text,
         jsonb_build_object('job_id', s.job_id)
    FROM subject s
   CROSS JOIN (SELECT 'run.cancelled' AS action FROM finished
               UNION ALL SELECT 'run.cancel_requested' FROM asked WHERE is_new) what)
SELECT outcome, EXISTS (SELECT FROM finished) AS is_cancelled, EXISTS (SELECT FROM asked) AS is_asked FROM subject;

-- name: reprioritise_run
-- Give a run that waits another priority, and thereby another place among its tenant's. No row: there is no such run, or
-- it is not the given tenant's. `was` is the priority that it had; None: it did not wait. Not moved with another one
-- than is wanted: it was claimed or put back at this very moment, so ask again.
WITH subject AS (
  SELECT r.outcome, r.job_uid, r.scheduled_for, j.tenant_id, j.job_id
    FROM rota.run r JOIN rota.job j ON j.shard = r.shard AND j.job_uid = r.job_uid
   WHERE r.shard = $shard AND r.job_uid = $job_uid AND r.scheduled_for = $scheduled_for
     AND ($tenant_id::text IS NULL OR j.tenant_id = $tenant_id)),
before AS (
  SELECT priority FROM rota.pending WHERE shard = $shard AND job_uid = $job_uid AND scheduled_for = $scheduled_for),
moved AS (
  UPDATE rota.pending SET priority = $priority::smallint, rank = rota.rank_of(available_at, $priority, pool)
   WHERE shard = $shard AND job_uid = $job_uid AND scheduled_for = $scheduled_for AND priority <> $priority::smallint
     AND EXISTS (SELECT FROM subject)
  RETURNING priority),
noted AS (
  INSERT INTO rota.audit (tenant_id, at, audit_id, actor, action, subject, before, after)
  SELECT s.tenant_id, $now, $audit_id, $actor, 'run.reprioritised', rota.run_id(s.job_uid, s.scheduled_for)::text,
         jsonb_build_object('priority', b.priority), jsonb_build_object('job_id', s.job_id, 'priority', m.priority)
    FROM moved m CROSS JOIN subject s LEFT JOIN before b ON true)
SELECT s.outcome, (SELECT b.priority FROM before b) AS was, EXISTS (SELECT FROM moved) AS is_moved,
       EXISTS (SELECT FROM rota.lease l
                WHERE l.shard = $shard AND l.job_uid = $job_uid AND l.scheduled_for = $scheduled_for) AS is_running
  FROM subject s;

-- name: get_run
-- One run, with the error of its last ended attempt. Of a run that has ended, start, length and progress are that
-- attempt's, too.
SELECT v.*, d.died_at, last.error, last.started_at AS last_started_at, last.ended_at AS last_ended_at,
       last.progress AS last_progress, last.progress_note AS last_progress_note
  FROM rota.job_run v
  LEFT JOIN LATERAL (
       SELECT a.error, a.claimed_at AS started_at, a.ended_at, a.progress, a.progress_note FROM rota.attempt a
        WHERE a.shard = v.shard AND a.job_uid = v.job_uid AND a.scheduled_for = v.scheduled_for
        ORDER BY a.ended_at DESC LIMIT 1) last ON true
  LEFT JOIN rota.dead d ON d.shard = v.shard AND d.job_uid = v.job_uid AND d.scheduled_for = v.scheduled_for
 WHERE v.shard = $shard AND v.job_uid = $job_uid AND v.scheduled_for = $scheduled_for
   AND ($tenant_id::text IS NULL OR v.tenant_id = $tenant_id);

-- name: attempts_of
-- The last attempts of a run, latest first.
SELECT attempt, outcome, worker_id, started_at, ended_at, error, job_version, progress, progress_note
  FROM rota.run_attempt
 WHERE shard = $shard AND job_uid = $job_uid AND scheduled_for = $scheduled_for
 ORDER BY started_at DESC LIMIT $limit;

-- name: runs_of_job
-- Newest slots first, before a given slot. Payloads and results, which may be large, are read only if they are asked for.
-- The last ended attempt is looked up for the runs of the page only.
SELECT p.*, CASE WHEN $whole::boolean THEN last.error ELSE left(last.error, 500) END AS error,
       last.started_at AS last_started_at, last.ended_at AS last_ended_at,
       last.progress AS last_progress, last.progress_note AS last_progress_note
  FROM (
    SELECT v.shard, v.job_uid, v.run_id, v.tenant_id, v.job_id, v.scheduled_for, v.state, v.gate, v.origin, v.attempt, v.max_attempts, v.handler,
           v.pool, v.priority, v.created_at, v.available_at, v.started_at, v.worker_id, v.lease_expires_at,
           v.cancel_requested_at, v.progress, v.progress_note, v.finished_at, v.reason,
           CASE WHEN $whole::boolean THEN v.payload END AS payload, CASE WHEN $whole::boolean THEN v.result END AS result,
           NULL::timestamptz AS died_at
      FROM rota.job_run v
     WHERE v.created_at >= $since AND v.created_at < $until AND v.tenant_id = $tenant_id
       AND v.shard = $shard AND v.job_uid = $job_uid AND v.scheduled_for < $before -- not: recent_runs
       -- recent_runs: AND (v.scheduled_for, v.job_uid) < ($before::timestamptz, $before_uid::bigint)
       AND ($state = '' OR v.state = $state) AND ($handler = '' OR v.handler = $handler)
       AND ($label = '' OR (
            SELECT true FROM rota.job j
             WHERE j.shard = v.shard AND j.job_uid = v.job_uid
               AND CASE WHEN $label_value::text IS NULL THEN j.labels ? $label
                        ELSE j.labels ->> $label = $label_value END LIMIT 1))
       AND (NOT $failed::boolean OR (
            SELECT true FROM rota.attempt a
             WHERE a.shard = v.shard AND a.job_uid = v.job_uid AND a.scheduled_for = v.scheduled_for
               AND a.outcome IN ('failed', 'timed_out', 'gave_up', 'lost') LIMIT 1))
       AND ($error = '' OR strpos(lower((
            SELECT a.error FROM rota.attempt a
             WHERE a.shard = v.shard AND a.job_uid = v.job_uid AND a.scheduled_for = v.scheduled_for
             ORDER BY a.ended_at DESC LIMIT 1)), lower($error)) > 0)
     ORDER BY v.scheduled_for DESC, v.job_uid DESC LIMIT $limit) p
  LEFT JOIN LATERAL (
       SELECT a.error, a.claimed_at AS started_at, a.ended_at, a.progress, a.progress_note FROM rota.attempt a
        WHERE a.shard = p.shard AND a.job_uid = p.job_uid AND a.scheduled_for = p.scheduled_for
        ORDER BY a.ended_at DESC LIMIT 1) last ON true
 ORDER BY p.scheduled_for DESC, p.job_uid DESC;

-- name: recent_runs
-- like: runs_of_job
-- Runs made within a window, newest slots first, before a given place: a wide read for people, bounded by its window.

-- name: dead_runs
-- A tenant's dead letters that a filter means, as runs with their last errors: newest slots first, before a given place.
SELECT v.run_id, v.tenant_id, v.job_id, v.scheduled_for, v.state, v.gate, v.origin, v.attempt, v.max_attempts, v.handler,
       v.pool, v.priority, v.created_at, v.available_at, v.started_at, v.worker_id, v.lease_expires_at,
       v.cancel_requested_at, v.progress, v.progress_note, v.finished_at, v.reason,
       CASE WHEN $whole::boolean THEN v.payload END AS payload, CASE WHEN $whole::boolean THEN v.result END AS result,
       d.died_at, CASE WHEN $whole::boolean THEN last.error ELSE left(last.error, 500) END AS error,
       last.started_at AS last_started_at, last.ended_at AS last_ended_at,
       last.progress AS last_progress, last.progress_note AS last_progress_note
  FROM (
    SELECT d.shard, d.job_uid, d.scheduled_for, d.died_at
      FROM rota.dead d JOIN rota.job j ON j.shard = d.shard AND j.job_uid = d.job_uid
     WHERE d.tenant_id = $tenant_id AND d.died_at >= $since AND d.died_at < $until
       AND (d.scheduled_for, d.job_uid) < ($before::timestamptz, $before_uid::bigint)
       AND ($job_id = '' OR j.job_id = $job_id) AND ($handler = '' OR j.handler = $handler)
       AND ($label = '' OR CASE WHEN $label_value::text IS NULL THEN j.labels ? $label
                                ELSE j.labels ->> $label = $label_value END)
       AND (NOT $failed::boolean OR (
            SELECT true FROM rota.attempt a
             WHERE a.shard = d.shard AND a.job_uid = d.job_uid AND a.scheduled_for = d.scheduled_for
               AND a.outcome IN ('failed', 'timed_out', 'gave_up', 'lost') LIMIT 1))
       AND ($error = '' OR strpos(lower((
            SELECT a.error FROM rota.attempt a
             WHERE a.shard = d.shard AND a.job_uid = d.job_uid AND a.scheduled_for = d.scheduled_for
             ORDER BY a.ended_at DESC LIMIT 1)), lower($error)) > 0)
     ORDER BY d.scheduled_for DESC, d.job_uid DESC LIMIT $limit) d
 CROSS JOIN LATERAL (
       SELECT * FROM rota.job_run x
        WHERE x.shard = d.shard AND x.job_uid = d.job_uid AND x.scheduled_for = d.scheduled_for LIMIT 1) v
  LEFT JOIN LATERAL (
       SELECT a.error, a.claimed_at AS started_at, a.ended_at, a.progress, a.progress_note FROM rota.attempt a
        WHERE a.shard = d.shard AND a.job_uid = d.job_uid AND a.scheduled_for = d.scheduled_for
        ORDER BY a.ended_at DESC LIMIT 1) last ON true
 ORDER BY v.scheduled_for DESC, v.job_uid DESC;

-- name: list_dead
-- A tenant's dead letters, latest first, each with the error of its last attempt.
SELECT rota.run_id(d.job_uid, d.scheduled_for) AS run_id, j.job_id, d.scheduled_for, d.died_at, d.shard, d.job_uid,
       last.attempt, last.outcome, last.error
  FROM rota.dead d
  JOIN rota.job j ON j.shard = d.shard AND j.job_uid = d.job_uid
  LEFT JOIN LATERAL (
       SELECT a.attempt, a.outcome, a.error FROM rota.attempt a
        WHERE a.shard = d.shard AND a.job_uid = d.job_uid AND a.scheduled_for = d.scheduled_for
        ORDER BY a.ended_at DESC LIMIT 1) last ON true
 WHERE d.tenant_id = $tenant_id AND ($job_id = '' OR j.job_id = $job_id)
 ORDER BY d.died_at DESC LIMIT $limit;

-- name: list_skipped
SELECT first_slot, last_slot, slots, reason, policy, recorded_at FROM rota.skipped
 WHERE shard = $shard AND job_uid = $job_uid ORDER BY first_slot DESC LIMIT $limit;

-- name: skipped_of_all
-- A tenant's part of the slot ledger that was entered within a window, latest first, before a given place.
SELECT z.job_uid, j.job_id, z.first_slot, z.last_slot, z.slots, z.reason, z.policy, z.recorded_at
  FROM rota.skipped z JOIN rota.job j ON j.shard = z.shard AND j.job_uid = z.job_uid
 WHERE z.recorded_at >= $since AND z.recorded_at < $until AND j.tenant_id = $tenant_id
   AND ($reason = '' OR z.reason = $reason)
   AND (z.recorded_at, z.job_uid, z.first_slot) < ($before_at::timestamptz, $before_uid::bigint, $before_slot::timestamptz)
 ORDER BY z.recorded_at DESC, z.job_uid DESC, z.first_slot DESC LIMIT $limit;

-- name: skipped_counts
-- How many slots of how many jobs were entered into the slot ledger within a window. A range past 1,000 counts as 1,000.
SELECT reason, sum(coalesce(slots, 1000))::bigint AS slots, count(DISTINCT job_uid) AS jobs FROM rota.skipped
 WHERE recorded_at >= $since AND recorded_at < $until GROUP BY reason ORDER BY reason;
