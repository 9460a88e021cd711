-- name: lock_jobs
-- The present definitions of these jobs, locked in key order so that two editors never wait for each other crosswise.
SELECT * FROM rota.job
 WHERE (shard, job_uid) IN (SELECT * FROM unnest($shards::smallint[], $job_uids::bigint[])) -- not: lock_live_jobs
 -- lock_live_jobs: WHERE (shard, tenant_id, job_id) IN (
 -- lock_live_jobs:       SELECT * FROM unnest($shards::smallint[], $tenant_ids::text[], $job_ids::text[]))
 -- lock_live_jobs:   AND deleted_at IS NULL
 ORDER BY shard, job_uid FOR UPDATE
 -- lock_free_jobs: SKIP LOCKED
;

-- name: lock_free_jobs
-- like: lock_jobs
-- The same for a shared loop, which waits for nobody: jobs that somebody's open transaction holds are left out.

-- name: lock_live_jobs
-- like: lock_jobs
-- The jobs that live under these ids, locked as above.

-- name: last_generations
-- Of each id that a deleted job had: the last one's generation, and the version at which it stands. To be asked after
-- lock_live_jobs, in a statement of its own: a delete for which that waited is seen.
SELECT k.tenant_id, k.job_id, j.generation, j.version
  FROM unnest($shards::smallint[], $tenant_ids::text[], $job_ids::text[]) k (shard, tenant_id, job_id)
 CROSS JOIN LATERAL (
       SELECT x.generation, x.version FROM rota.job x
        WHERE x.shard = k.shard AND x.tenant_id = k.tenant_id AND x.job_id = k.job_id
          AND x.deleted_at IS NOT NULL
        ORDER BY x.generation DESC LIMIT 1) j;

-- name: generations_of
-- The numbers of all jobs that had an id, deleted or not, the latest first.
SELECT g.job_uid FROM (
  SELECT job_uid, generation FROM rota.job
   WHERE shard = $shard AND tenant_id = $tenant_id AND job_id = $job_id AND deleted_at IS NULL
  UNION ALL
  (SELECT job_uid, generation FROM rota.job
    WHERE shard = $shard AND tenant_id = $tenant_id AND job_id = $job_id AND deleted_at IS NOT NULL
    ORDER BY generation DESC LIMIT $limit)) g
 ORDER BY g.generation DESC LIMIT $limit;

-- name: names_at
-- Whose these numbers are.
SELECT j.job_uid, j.tenant_id, j.job_id FROM unnest($shards::smallint[], $job_uids::bigint[]) k (shard, job_uid)
 CROSS JOIN LATERAL (
       SELECT x.job_uid, x.tenant_id, x.job_id FROM rota.job x WHERE x.shard = k.shard AND x.job_uid = k.job_uid LIMIT 1) j;

-- name: lock_schedules
-- Where these jobs' schedules stand. A statement of its own, after lock_jobs: joined to it, a schedule would be as old
-- as that statement's snapshot, and an editor that had to wait would write it back.
SELECT shard, job_uid, next_run_at, next_slot, since FROM rota.schedule
 WHERE (shard, job_uid) IN (SELECT * FROM unnest($shards::smallint[], $job_uids::bigint[]))
 ORDER BY shard, job_uid FOR UPDATE;

-- name: write_jobs
-- Insert or replace definitions. An existing row is replaced only at the version that the caller read, and while it lives:
-- a number is a digest, and may be another job's.
INSERT INTO rota.job AS j (shard, job_uid, tenant_id, job_id, generation, version, handler, schedule, payload, pool,
  priority, max_attempts, retry, misfire, misfire_grace_ms, timeout_ms, lease_ms, jitter_ms, overlap, start_deadline_ms,
  max_concurrency, concurrency_key, key_concurrency, limits, max_losses, pause_after, labels, description, created_at,
  updated_at)
SELECT g.*, $now, $now
  FROM unnest($shards::smallint[], $job_uids::bigint[], $tenant_ids::text[], $job_ids::text[],
              $generations::integer[], $versions::bigint[], $handlers::text[], $schedules::jsonb[], $payloads::jsonb[],
              $pools::text[], $priorities::smallint[],
              $max_attempts::integer[], $retries::jsonb[], $misfires::jsonb[], $graces::bigint[], $timeouts::bigint[],
              $leases::bigint[], $jitters::bigint[], $overlaps::text[], $start_deadlines::bigint[],
              $max_concurrencies::integer[], $concurrency_keys::text[], $key_concurrencies::integer[], $limits::jsonb[],
              $max_losses::integer[], $pause_afters::integer[], $labels::jsonb[], $descriptions::text[]) g
ON CONFLICT (shard, job_uid) DO UPDATE SET
  version = excluded.version, handler = excluded.handler, schedule = excluded.schedule, payload = excluded.payload,
  pool = excluded.pool, priority = excluded.priority, max_attempts = excluded.max_attempts, retry = excluded.retry,
  misfire = excluded.misfire, misfire_grace_ms = excluded.misfire_grace_ms, timeout_ms = excluded.timeout_ms,
  lease_ms = excluded.lease_ms, jitter_ms = excluded.jitter_ms, overlap = excluded.overlap,
  start_deadline_ms = excluded.start_deadline_ms, max_concurrency = excluded.max_concurrency,
  concurrency_key = excluded.concurrency_key, key_concurrency = excluded.key_concurrency, limits = excluded.limits,
  max_losses = excluded.max_losses, pause_after = excluded.pause_after, labels = excluded.labels,
  description = excluded.description,
  payload_since = CASE WHEN j.payload = excluded.payload THEN j.payload_since ELSE excluded.version END, quarantined = NULL, updated_at = excluded.updated_at
  WHERE j.version = excluded.version - 1 AND j.deleted_at IS NULL
    AND (j.tenant_id, j.job_id) = (excluded.tenant_id, excluded.job_id)
RETURNING shard, job_uid;

-- name: keep_payloads
-- Before an edit, keep the payloads that it replaces, for the runs that ran with them: at most $most of each job and the
-- last one. The caller holds the jobs' locks.
WITH kept AS (
  INSERT INTO rota.former_payload (shard, job_uid, since, payload)
  SELECT j.shard, j.job_uid, j.payload_since, j.payload
    FROM unnest($shards::smallint[], $job_uids::bigint[], $payloads::jsonb[]) k (shard, job_uid, payload)
   CROSS JOIN LATERAL (
         SELECT x.shard, x.job_uid, x.payload_since, x.payload FROM rota.job x
          WHERE x.shard = k.shard AND x.job_uid = k.job_uid LIMIT 1) j
   WHERE j.payload <> k.payload
  ON CONFLICT (shard, job_uid, since) DO NOTHING
  RETURNING shard, job_uid)
DELETE FROM rota.former_payload WHERE ctid = ANY (ARRAY (
  SELECT old.ctid FROM kept
   CROSS JOIN LATERAL (
         SELECT f.ctid FROM rota.former_payload f WHERE f.shard = kept.shard AND f.job_uid = kept.job_uid
          ORDER BY f.since DESC OFFSET $most) old))
RETURNING job_uid;

-- name: write_owners
-- Set whose jobs are; the caller holds their rows' locks.
UPDATE rota.job j SET owner = g.owner, source = g.source, declared = g.declared, overrides = g.overrides,
       orphaned_at = g.orphaned_at
  FROM unnest($shards::smallint[], $job_uids::bigint[], $owners::text[], $sources::text[], $declareds::jsonb[],
              $overrides::jsonb[], $orphaned_ats::timestamptz[])
       g (shard, job_uid, owner, source, declared, overrides, orphaned_at)
 WHERE j.shard = g.shard AND j.job_uid = g.job_uid
RETURNING j.job_uid;

-- name: mark_orphans
-- Mark jobs that a source declared before and does not declare now. One that somebody is editing is passed over.
UPDATE rota.job SET orphaned_at = $now
 WHERE ctid = ANY (ARRAY (
       SELECT ctid FROM rota.job
        WHERE tenant_id = $tenant_id AND source = $source AND owner = 'code' AND orphaned_at IS NULL
          AND deleted_at IS NULL AND job_id <> ALL ($declared::text[])
        LIMIT $limit FOR UPDATE SKIP LOCKED))
RETURNING job_id;

-- name: write_schedules
-- Set when schedulers look next. `next_run_at` NULL keeps a job out of their sight.
INSERT INTO rota.schedule (shard, job_uid, next_run_at, next_slot, version, since)
SELECT g.* FROM unnest($shards::smallint[], $job_uids::bigint[], $next_run_ats::timestamptz[],
                       $next_slots::timestamptz[], $versions::bigint[], $sinces::timestamptz[]) g
ON CONFLICT (shard, job_uid) DO UPDATE SET next_run_at = excluded.next_run_at, next_slot = excluded.next_slot,
  version = excluded.version, since = excluded.since
RETURNING shard, job_uid;

-- name: reroute_pending
-- Waiting runs follow an edit of their job: pool and handler are the job's, and so is a priority that was changed with
-- them; without a change each keeps its own. What waited for a worker or a limit is looked at anew.
-- No ctid array: a run whose gate opens at this moment has moved, and a join finds it where it is.
UPDATE rota.pending p SET pool = e.pool, handler = rota.handler_key(e.handler),
       priority = coalesce(e.priority, p.priority),
       rank = rota.rank_of(p.available_at, coalesce(e.priority, p.priority), e.pool),
       gate = CASE WHEN p.gate IN ('handler', 'limit') THEN 'open' ELSE p.gate END
  FROM unnest($shards::smallint[], $job_uids::bigint[], $pools::text[], $handlers::text[], $priorities::smallint[])
       e (shard, job_uid, pool, handler, priority)
 WHERE p.shard = e.shard AND p.job_uid = e.job_uid
RETURNING p.job_uid;

-- name: get_job
SELECT j.*, s.next_run_at, s.next_slot, s.since
  FROM rota.job j LEFT JOIN rota.schedule s ON s.shard = j.shard AND s.job_uid = j.job_uid
 WHERE j.shard = $shard AND j.job_uid = $job_uid AND j.deleted_at IS NULL -- not: find_job
 -- find_job: WHERE j.shard = $shard AND j.tenant_id = $tenant_id AND j.job_id = $job_id AND j.deleted_at IS NULL
;

-- name: find_job
-- like: get_job
-- The job that lives under an id.

-- name: find_jobs
-- The jobs that live under these ids, as they stand: nobody is waited for, and nothing is held.
SELECT j.*, s.next_run_at, s.next_slot, s.since
  FROM rota.job j LEFT JOIN rota.schedule s ON s.shard = j.shard AND s.job_uid = j.job_uid
 WHERE (j.shard, j.tenant_id, j.job_id) IN (
       SELECT * FROM unnest($shards::smallint[], $tenant_ids::text[], $job_ids::text[]))
   AND j.deleted_at IS NULL;

-- name: list_jobs
-- One page of a tenant's jobs in the order of their ids: those after $after, from $low on and before $upto. Each shard
-- gives its first ones by the index over the names, so that nothing is sorted but what the shards give; only the rows
-- of the page itself are read, and of these nothing that may be large.
SELECT j.shard, j.job_uid, j.tenant_id, j.job_id, j.generation, j.version, j.handler, j.schedule, '{}' AS payload, j.pool,
       j.priority, j.max_attempts, j.retry, j.misfire, j.misfire_grace_ms, j.timeout_ms, j.lease_ms, j.jitter_ms, j.overlap,
       j.start_deadline_ms, j.labels, j.description, j.paused_at, j.pause_reason, j.quarantined, j.deleted_at,
       j.created_at, j.updated_at, j.resume_at, j.max_concurrency, j.concurrency_key, j.key_concurrency, j.limits,
       j.max_losses, j.pause_after, j.owner, j.source, j.overrides, j.orphaned_at, j.resume_missed, j.dead_since,
       j.payload_since, NULL::jsonb AS declared, s.next_run_at, s.next_slot, s.since
  FROM (
       SELECT k.shard, k.job_uid, k.job_id FROM unnest($shards::smallint[]) sh
        CROSS JOIN LATERAL (
              SELECT x.shard, x.job_uid, x.job_id FROM rota.job x
               WHERE x.shard = sh AND x.tenant_id = $tenant_id AND x.job_id > $after AND x.job_id >= $low
                 AND x.job_id < $upto AND x.deleted_at IS NULL
                 AND ($handler = '' OR x.handler = $handler)
                 AND ($label = '' OR x.labels ? $label)
                 AND ($label_value::text IS NULL OR x.labels ->> $label = $label_value)
                 AND ($enabled::boolean IS NULL OR (x.paused_at IS NULL AND x.quarantined IS NULL) = $enabled)
                 AND ($owner = '' OR x.owner = $owner) AND ($source = '' OR x.source = $source)
                 AND ($orphaned::boolean IS NULL OR (x.orphaned_at IS NOT NULL) = $orphaned)
               ORDER BY x.job_id LIMIT $limit) k
        ORDER BY k.job_id LIMIT $limit) p
 CROSS JOIN LATERAL (SELECT * FROM rota.job x WHERE x.shard = p.shard AND x.job_uid = p.job_uid LIMIT 1) j
  LEFT JOIN LATERAL (SELECT next_run_at, next_slot, since FROM rota.schedule x
                      WHERE x.shard = p.shard AND x.job_uid = p.job_uid LIMIT 1) s ON true
 ORDER BY p.job_id;

-- name: count_jobs
-- How many jobs a tenant has, counted no further than $bound.
SELECT count(*) AS jobs FROM (
  SELECT FROM unnest($shards::smallint[]) sh
   CROSS JOIN LATERAL (
         SELECT FROM rota.job x WHERE x.shard = sh AND x.tenant_id = $tenant_id AND x.deleted_at IS NULL
          LIMIT $bound) l
   LIMIT $bound) c;

-- name: set_pause
-- Pause or (with NULLs) resume; the caller holds the row's lock and writes the schedule in the same transaction. Dead
-- letters in a row are counted anew from a resume on.
UPDATE rota.job SET paused_at = $paused_at::timestamptz, pause_reason = $reason, resume_at = $resume_at::timestamptz,
       resume_missed = $missed,
       dead_since = CASE WHEN $paused_at::timestamptz IS NULL THEN $now ELSE dead_since END,
       version = version + 1, updated_at = $now
 WHERE shard = $shard AND job_uid = $job_uid AND deleted_at IS NULL
RETURNING version;

-- name: amend_pause
-- Give the pause of a job that is paused another reason and another end.
UPDATE rota.job SET pause_reason = $reason, resume_at = $resume_at::timestamptz, resume_missed = $missed,
       updated_at = $now
 WHERE shard = $shard AND job_uid = $job_uid AND deleted_at IS NULL AND paused_at IS NOT NULL
RETURNING version;

-- name: due_resumes
-- Paused jobs whose time to run again has come, but for those in $aside.
SELECT tenant_id, job_id, job_uid FROM rota.job
 WHERE resume_at <= $now AND paused_at IS NOT NULL AND deleted_at IS NULL AND job_uid <> ALL ($aside::bigint[])
 ORDER BY resume_at LIMIT $limit;

-- name: make_missed
-- Make the runs of slots that a pause held back; a slot that somebody triggered meanwhile has its run. The caller holds
-- the job's lock. Where only the newest slot may wait ($supersedes), it supersedes older ones as in materialise_runs,
-- and asks for the end of what runs ($replaces).
WITH wanted AS MATERIALIZED (
  SELECT * FROM unnest($slots::timestamptz[], $available_ats::timestamptz[], $deadlines::timestamptz[], $gates::text[])
                w (scheduled_for, available_at, deadline_at, gate)),
made AS (
  INSERT INTO rota.run (shard, job_uid, scheduled_for, created_at, origin)
  SELECT $shard, $job_uid, scheduled_for, $now, 'schedule' FROM wanted
  ON CONFLICT (shard, job_uid, scheduled_for) DO NOTHING
  RETURNING scheduled_for),
newest AS MATERIALIZED (
  SELECT max(scheduled_for) AS slot FROM made WHERE $supersedes::boolean HAVING count(*) > 0),
older AS MATERIALIZED (
  SELECT p.at, p.scheduled_for FROM newest n
   CROSS JOIN LATERAL (
         SELECT x.ctid AS at, x.scheduled_for FROM rota.pending x
          WHERE x.shard = $shard AND x.job_uid = $job_uid AND x.scheduled_for < n.slot AND x.attempt = 0 AND x.losses = 0
            AND NOT EXISTS (SELECT FROM rota.attempt a
                             WHERE a.shard = x.shard AND a.job_uid = x.job_uid AND a.scheduled_for = x.scheduled_for)
            AND EXISTS (SELECT FROM rota.run r
                         WHERE r.shard = x.shard AND r.job_uid = x.job_uid AND r.scheduled_for = x.scheduled_for
                           AND r.origin = 'schedule')
            FOR UPDATE OF x SKIP LOCKED) p),
superseded AS (
  DELETE FROM rota.pending WHERE ctid = ANY (ARRAY (SELECT at FROM older)) RETURNING scheduled_for),
cancelled AS (
  UPDATE rota.run r SET outcome = 'cancelled', finished_at = $now, attempt = 0, reason = $reason
    FROM older o
   CROSS JOIN LATERAL (
         SELECT x.tableoid, x.ctid FROM rota.run x
          WHERE x.shard = $shard AND x.job_uid = $job_uid AND x.scheduled_for = o.scheduled_for LIMIT 1) at
   WHERE r.scheduled_for = o.scheduled_for AND r.tableoid = at.tableoid AND r.ctid = at.ctid
     AND NOT (o.scheduled_for NOT IN (SELECT scheduled_for FROM superseded))),
replaced AS (
  UPDATE rota.lease SET cancel_requested_at = $now WHERE ctid = ANY (ARRAY (
    SELECT l.ctid FROM newest n
     CROSS JOIN LATERAL (
           SELECT x.ctid FROM rota.lease x
            WHERE x.shard = $shard AND x.job_uid = $job_uid AND x.scheduled_for < n.slot
              AND x.cancel_requested_at IS NULL FOR NO KEY UPDATE SKIP LOCKED) l
     WHERE $replaces::boolean)))
INSERT INTO rota.pending (shard, job_uid, scheduled_for, rank, available_at, attempt, gate, pool, handler, tenant_id,
                          priority, deadline_at)
SELECT $shard, $job_uid, w.scheduled_for, rota.rank_of(w.available_at, $priority, $pool), w.available_at, 0, w.gate, $pool,
       rota.handler_key($handler), $tenant_id, $priority::smallint, w.deadline_at
  FROM wanted w WHERE NOT (w.scheduled_for NOT IN (SELECT scheduled_for FROM made))
RETURNING scheduled_for;

-- name: mark_deleted
UPDATE rota.job SET deleted_at = $now, version = version + 1, updated_at = $now, paused_at = NULL, pause_reason = NULL,
       resume_at = NULL
 WHERE shard = $shard AND job_uid = $job_uid AND deleted_at IS NULL
RETURNING version;

-- name: drop_schedule
DELETE FROM rota.schedule WHERE shard = $shard AND job_uid = $job_uid RETURNING next_slot;

-- name: cancel_waiting
-- Cancel every waiting run of a job: out of the queue and finished in the ledger, in one statement.
WITH gone AS (
  DELETE FROM rota.pending WHERE shard = $shard AND job_uid = $job_uid
  RETURNING shard, job_uid, scheduled_for, attempt)
UPDATE rota.run r SET outcome = 'cancelled', finished_at = $now, attempt = gone.attempt, reason = $reason
  FROM gone
 CROSS JOIN LATERAL (
       SELECT x.tableoid, x.ctid FROM rota.run x
        WHERE x.shard = gone.shard AND x.job_uid = gone.job_uid AND x.scheduled_for = gone.scheduled_for LIMIT 1) at
 WHERE r.scheduled_for = gone.scheduled_for AND r.tableoid = at.tableoid AND r.ctid = at.ctid
RETURNING r.scheduled_for;

-- name: note_skipped
-- Enter ranges of a job's slots into the slot ledger; one that begins like an earlier one extends it.
INSERT INTO rota.skipped AS z (shard, job_uid, first_slot, last_slot, slots, reason, policy, recorded_at)
SELECT $shard, $job_uid, k.first_slot, k.last_slot, k.slots, k.reason, $policy::jsonb, $now
  FROM unnest($firsts::timestamptz[], $lasts::timestamptz[], $counts::integer[], $reasons::text[])
       k (first_slot, last_slot, slots, reason)
ON CONFLICT (shard, job_uid, first_slot) DO UPDATE SET last_slot = excluded.last_slot, slots = excluded.slots
  WHERE z.last_slot < excluded.last_slot
RETURNING first_slot;

-- name: stored_schedules
-- One page of computed next slots with their rules, for a recomputation after new tz data.
SELECT s.shard, s.job_uid, s.next_run_at, s.next_slot, s.version, j.job_id, j.schedule
  FROM rota.schedule s JOIN rota.job j ON j.shard = s.shard AND j.job_uid = s.job_uid
 WHERE s.shard = $shard AND s.job_uid > $after AND s.next_slot > $now
 ORDER BY s.job_uid LIMIT $limit;

-- name: move_next_slot
-- Correct a computed next slot, if nobody advanced or edited the schedule meanwhile. The present rule holds from now on:
-- slots of the past were named by the old tz data. A schedule that somebody holds is passed over.
UPDATE rota.schedule SET since = $now, next_slot = $next_slot::timestamptz,
       next_run_at = CASE WHEN next_run_at IS NULL THEN NULL ELSE $next_slot::timestamptz END
 WHERE ctid = ANY (ARRAY (
       SELECT s.ctid FROM rota.schedule s
        WHERE s.shard = $shard AND s.job_uid = $job_uid AND s.version = $version AND s.next_slot = $was
          FOR NO KEY UPDATE SKIP LOCKED))
RETURNING next_slot;

-- name: lock_if_free
-- A job and where its schedule stands, both locked; nothing where somebody else has either, such as a transaction that
-- has triggered a run of it: nobody waits for that.
WITH own AS MATERIALIZED (
  SELECT * FROM rota.job WHERE shard = $shard AND job_uid = $job_uid FOR UPDATE SKIP LOCKED),
due AS MATERIALIZED (
  SELECT next_run_at, next_slot, since FROM rota.schedule
   WHERE shard = $shard AND job_uid = $job_uid FOR UPDATE SKIP LOCKED)
SELECT own.*, due.next_run_at, due.next_slot, due.since
  FROM own LEFT JOIN due ON true
 WHERE EXISTS (SELECT FROM due)
    OR NOT EXISTS (SELECT FROM rota.schedule s WHERE s.shard = $shard AND s.job_uid = $job_uid);

-- name: want_pause
-- Note jobs that are to be paused, and that somebody has locked; what is noted already moves behind the others.
INSERT INTO rota.pause_wanted AS w (shard, job_uid, noted_at)
SELECT * FROM unnest($shards::smallint[], $job_uids::bigint[]) k (shard, job_uid), (VALUES ($now::timestamptz)) n (at)
 ORDER BY 1, 2
ON CONFLICT (shard, job_uid) DO UPDATE SET noted_at = excluded.noted_at
RETURNING job_uid;

-- name: pauses_wanted
-- Jobs of these shards that are to be paused, those that have waited longest first.
SELECT job_uid, noted_at FROM rota.pause_wanted WHERE shard = ANY ($shards::smallint[])
 ORDER BY noted_at LIMIT $limit;

-- name: forget_pauses
-- These are paused, or need not be. What somebody has noted anew since stays.
DELETE FROM rota.pause_wanted w
 USING unnest($shards::smallint[], $job_uids::bigint[], $noted_ats::timestamptz[]) k (shard, job_uid, noted_at)
 WHERE w.shard = k.shard AND w.job_uid = k.job_uid AND w.noted_at = k.noted_at
RETURNING w.job_uid;

-- name: dead_streaks
-- Which of these jobs are to be paused: their latest $pause_after finished runs are all dead. Counted are runs that
-- finished after the job's last resume, among those of its latest $window slots; cancelled ones say nothing.
SELECT j.tenant_id, j.job_id, j.job_uid, streak.dead, coalesce(streak.reason, died.error, '') AS error
  FROM unnest($shards::smallint[], $job_uids::bigint[]) k (shard, job_uid)
 CROSS JOIN LATERAL (SELECT * FROM rota.job x WHERE x.shard = k.shard AND x.job_uid = k.job_uid LIMIT 1) j
 CROSS JOIN LATERAL (
       SELECT count(*) AS dead, bool_and(f.outcome = 'dead') AS all_dead,
              (array_agg(f.scheduled_for ORDER BY f.finished_at DESC, f.scheduled_for DESC))[1] AS slot,
              (array_agg(f.reason ORDER BY f.finished_at DESC, f.scheduled_for DESC))[1] AS reason
         FROM (
              SELECT l.* FROM (
                     SELECT r.scheduled_for, r.finished_at, r.outcome, r.reason FROM rota.run r
                      WHERE r.shard = j.shard AND r.job_uid = j.job_uid AND r.outcome IN ('succeeded', 'dead')
                      ORDER BY r.scheduled_for DESC LIMIT $window) l
               WHERE j.dead_since IS NULL OR l.finished_at > j.dead_since
               -- Of runs that ended at one instant a success counts as the later.
               ORDER BY l.finished_at DESC, l.outcome DESC, l.scheduled_for DESC LIMIT j.pause_after) f) streak
  LEFT JOIN LATERAL (
       SELECT a.error FROM rota.attempt a
        WHERE a.shard = j.shard AND a.job_uid = j.job_uid AND a.scheduled_for = streak.slot
        ORDER BY a.ended_at DESC LIMIT 1) died ON true
 WHERE j.pause_after IS NOT NULL AND j.paused_at IS NULL AND j.deleted_at IS NULL
   AND streak.dead >= j.pause_after AND streak.all_dead;
