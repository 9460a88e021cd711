-- name: trigger_run
-- Make one run on request. No row: the slot is taken, since a slot is a run's identity, or the job is deleted. The job's
-- row is locked against an edit or a delete, whose own sweep over the waiting runs could not see this one.
WITH live AS (
  SELECT shard, job_uid, pool, handler FROM rota.job
   WHERE shard = $shard AND job_uid = $job_uid AND deleted_at IS NULL FOR SHARE),
made AS (
  INSERT INTO rota.run (shard, job_uid, scheduled_for, created_at, origin, payload)
  SELECT shard, job_uid, $scheduled_for, $now, 'manual', $payload::jsonb FROM live
  ON CONFLICT (shard, job_uid, scheduled_for) DO NOTHING
  RETURNING shard, job_uid, scheduled_for)
INSERT INTO rota.pending (shard, job_uid, scheduled_for, rank, available_at, attempt, gate, pool, handler)
SELECT m.shard, m.job_uid, m.scheduled_for, $rank, $available_at, 0, $gate, live.pool, live.handler
  FROM made m JOIN live ON live.shard = m.shard AND live.job_uid = m.job_uid
RETURNING pool;

-- name: replay_dead
-- Send dead letters back to the queue with the attempts they have had. A run that is no dead letter (any more), or whose
-- job is deleted, is left out.
WITH live AS (
  SELECT k.shard, k.job_uid, k.scheduled_for, j.priority, j.pool, j.handler
    FROM unnest($shards::smallint[], $job_uids::bigint[], $slots::timestamptz[]) k (shard, job_uid, scheduled_for)
    JOIN rota.job j ON j.shard = k.shard AND j.job_uid = k.job_uid
   WHERE j.deleted_at IS NULL FOR SHARE OF j),
raised AS (
  DELETE FROM rota.dead d USING live
   WHERE d.shard = live.shard AND d.job_uid = live.job_uid AND d.scheduled_for = live.scheduled_for
  RETURNING d.shard, d.job_uid, d.scheduled_for, live.priority, live.pool, live.handler),
reopened AS (
  UPDATE rota.run r SET outcome = NULL, finished_at = NULL
    FROM raised d
   WHERE r.shard = d.shard AND r.job_uid = d.job_uid AND r.scheduled_for = d.scheduled_for AND r.outcome = 'dead'
  RETURNING r.shard, r.job_uid, r.scheduled_for, r.attempt, d.priority, d.pool, d.handler)
INSERT INTO rota.pending (shard, job_uid, scheduled_for, rank, available_at, attempt, gate, pool, handler)
SELECT shard, job_uid, scheduled_for, $rank_at - priority * $ageing_ms::bigint, $now, attempt, 'open', pool, handler
  FROM reopened
RETURNING shard, job_uid, scheduled_for;

-- name: get_run
SELECT * FROM rota.job_run WHERE shard = $shard AND job_uid = $job_uid AND scheduled_for = $scheduled_for;

-- name: attempts_of
SELECT attempt, outcome, worker_id, started_at, ended_at, error FROM rota.run_attempt
 WHERE shard = $shard AND job_uid = $job_uid AND scheduled_for = $scheduled_for
 ORDER BY started_at LIMIT $limit;

-- name: runs_of_job
-- Newest slots first, before a given slot.
SELECT * FROM rota.job_run
 WHERE shard = $shard AND job_uid = $job_uid AND scheduled_for < $before
   AND ($state = '' OR state = $state)
 ORDER BY scheduled_for DESC LIMIT $limit;

-- name: recent_runs
-- Runs made since an instant, newest slots first: a wide read for people, bounded by its window.
SELECT * FROM rota.job_run
 WHERE created_at >= $since AND tenant_id = $tenant_id AND ($state = '' OR state = $state)
 ORDER BY scheduled_for DESC, job_uid LIMIT $limit;

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
