-- name: claim_runs
-- Take the best-ranked open runs of a pool whose handlers the worker knows, and lease each under its own token.
-- Picked by ctid, since statistics of a table that is empty one moment and deep the next make any join plan flip.
-- With a $claim_id the tokens are noted under it, and a second claim of that id fails as a whole.
WITH taken AS (
  DELETE FROM rota.pending WHERE ctid = ANY (ARRAY (
    SELECT ctid FROM rota.pending
     WHERE pool = $pool AND rank >= $low_water
       AND gate = 'open' -- not: claim_tenant_runs
       -- claim_tenant_runs: AND tenant_id = $tenant_id AND gate BETWEEN 'open' AND 'open'
       AND (handler = ANY ($handlers::text[]) OR $any_handler AND handler NOT IN ('shell', 'http'))
     ORDER BY rank LIMIT $limit FOR UPDATE SKIP LOCKED))
  RETURNING shard, job_uid, scheduled_for, attempt, rank, handler),
facts AS MATERIALIZED (
  SELECT t.shard, t.job_uid, t.scheduled_for, t.rank,
         -- What waits as "http" is called by its URL.
         CASE WHEN t.handler = 'http' THEN coalesce(j.handler, t.handler) ELSE t.handler END AS handler,
         -- A counter at its column's maximum must not make the whole batch fail.
         least(t.attempt, 2147483646) + 1 AS attempt,
         ($tokens::uuid[])[(row_number() OVER (ORDER BY t.rank, t.scheduled_for, t.job_uid))::int] AS token,
         coalesce(j.lease_ms, 60000) AS lease_ms, coalesce(j.timeout_ms, 3600000) AS timeout_ms,
         coalesce(j.max_attempts, 1) AS max_attempts, j.tenant_id, j.job_id, j.payload
    FROM taken t
    LEFT JOIN LATERAL (SELECT * FROM rota.job x WHERE x.shard = t.shard AND x.job_uid = t.job_uid LIMIT 1) j ON true),
leased AS (
  INSERT INTO rota.lease (shard, job_uid, scheduled_for, token, claimed_at, expires_at, lease_ms, attempt, worker_id)
  SELECT shard, job_uid, scheduled_for, token, $now, $now::timestamptz + lease_ms * interval '1 ms', lease_ms, attempt, $worker_id
    FROM facts),
noted AS (
  INSERT INTO rota.claim (tenant_id, worker_id, claim_id, tokens, claimed_at)
  SELECT $claim_tenant_id, $worker_id, $claim_id, array_agg(token), $now FROM facts
   WHERE $claim_id::uuid IS NOT NULL HAVING count(*) > 0)
SELECT f.shard, f.job_uid, f.scheduled_for, f.token, f.attempt, f.max_attempts, f.rank, f.handler, f.lease_ms,
       f.timeout_ms, f.tenant_id, f.job_id, coalesce(r.payload, f.payload) AS payload
  FROM facts f
  LEFT JOIN LATERAL (
       SELECT x.payload FROM rota.run x
        WHERE x.shard = f.shard AND x.job_uid = f.job_uid AND x.scheduled_for = f.scheduled_for LIMIT 1) r ON true
 ORDER BY f.rank;

-- name: claim_tenant_runs
-- like: claim_runs
-- Take runs of one tenant, in that tenant's own order: by another index, whatever others have waiting in the pool. That
-- index says "open" in other words, so that no statistics can lead to the index of all tenants' runs.

-- name: tokens_of_claim
-- Under which tokens a claim took its runs.
SELECT tokens FROM rota.claim
 WHERE tenant_id = $claim_tenant_id AND worker_id = $worker_id AND claim_id = $claim_id;

-- name: forget_claims
-- Remove what nobody will ask for again, at most $limit rows, oldest first.
DELETE FROM rota.claim WHERE ctid = ANY (ARRAY (
       SELECT ctid FROM rota.claim WHERE claimed_at <= $before ORDER BY claimed_at LIMIT $limit FOR UPDATE SKIP LOCKED))
RETURNING claim_id;

-- name: claimed_under
-- Read back a claim in doubt, or one that is repeated, by its tokens. No index serves it; it is for the rare bad day.
SELECT l.shard, l.job_uid, l.scheduled_for, l.token, l.attempt, l.lease_ms, l.claimed_at, l.expires_at,
       coalesce(j.max_attempts, 1) AS max_attempts, j.handler, coalesce(j.timeout_ms, 3600000) AS timeout_ms,
       j.tenant_id, j.job_id, coalesce(r.payload, j.payload) AS payload
  FROM rota.lease l
  LEFT JOIN rota.job j ON j.shard = l.shard AND j.job_uid = l.job_uid
  LEFT JOIN rota.run r ON r.shard = l.shard AND r.job_uid = l.job_uid AND r.scheduled_for = l.scheduled_for
 WHERE l.token = ANY ($tokens::uuid[]) AND l.worker_id = $worker_id;

-- name: jobs_of_tenant
-- Which of these jobs are a tenant's, deleted ones too: whoever ends a run must be its tenant's worker.
SELECT j.job_uid FROM unnest($shards::smallint[], $job_uids::bigint[]) k (shard, job_uid)
 CROSS JOIN LATERAL (
       SELECT x.job_uid FROM rota.job x
        WHERE x.shard = k.shard AND x.job_uid = k.job_uid AND x.tenant_id = $tenant_id LIMIT 1) j;

-- name: renew_leases
-- Extend each lease that is still there under its token, also a lapsed one that nobody reclaimed: the token is the
-- proof, the expiry only says from when on a reaper may take it. The answer says whose run somebody wants to end.
-- One that somebody has locked, perhaps a handler's own long transaction that completes its run, is passed over: waiting
-- for it would cost all the others of the batch their renewal.
UPDATE rota.lease SET expires_at = $now::timestamptz + lease_ms * interval '1 ms'
 WHERE ctid = ANY (ARRAY (
       SELECT held.ctid
         FROM unnest($shards::smallint[], $job_uids::bigint[], $slots::timestamptz[], $tokens::uuid[])
              h (shard, job_uid, scheduled_for, token)
        CROSS JOIN LATERAL (
              SELECT l.ctid FROM rota.lease l
               WHERE l.shard = h.shard AND l.job_uid = h.job_uid AND l.scheduled_for = h.scheduled_for
                 AND l.token = h.token LIMIT 1 FOR NO KEY UPDATE SKIP LOCKED) held))
RETURNING token, expires_at, cancel_requested_at IS NOT NULL AS cancel;

-- name: held_leases
-- Which of these leases are there as yet, whoever has them locked.
SELECT l.token, l.expires_at, l.cancel_requested_at IS NOT NULL AS cancel
  FROM unnest($shards::smallint[], $job_uids::bigint[], $slots::timestamptz[], $tokens::uuid[])
       h (shard, job_uid, scheduled_for, token)
 CROSS JOIN LATERAL (
       SELECT * FROM rota.lease x
        WHERE x.shard = h.shard AND x.job_uid = h.job_uid AND x.scheduled_for = h.scheduled_for AND x.token = h.token
        LIMIT 1) l;

-- name: note_progress
-- Note how far a run is; what is not said stays as it was.
UPDATE rota.lease SET progress = coalesce($progress::real, progress), progress_note = coalesce($note, progress_note)
 WHERE shard = $shard AND job_uid = $job_uid AND scheduled_for = $scheduled_for AND token = $token
RETURNING token;

-- name: leases_with_jobs
-- What a decision on the end of these attempts needs to know.
SELECT l.shard, l.job_uid, l.scheduled_for, l.token, l.attempt, l.claimed_at, l.expires_at,
       j.max_attempts, j.retry, coalesce(j.priority, 0) AS priority, j.pool, (j.job_uid IS NULL OR j.deleted_at IS NOT NULL) AS orphaned
  FROM unnest($shards::smallint[], $job_uids::bigint[], $slots::timestamptz[], $tokens::uuid[])
       h (shard, job_uid, scheduled_for, token)
 CROSS JOIN LATERAL (
       SELECT * FROM rota.lease x
        WHERE x.shard = h.shard AND x.job_uid = h.job_uid AND x.scheduled_for = h.scheduled_for AND x.token = h.token
        LIMIT 1) l
  LEFT JOIN rota.job j ON j.shard = l.shard AND j.job_uid = l.job_uid;

-- name: expired_leases
-- Leases of these shards that lapsed, with what their decision needs. A range of the primary key per shard: an index
-- on expires_at would cost every renewal its HOT update. One that somebody has locked is being renewed or ended just
-- then, perhaps by a handler's own long transaction: it is passed over, since waiting for it would hold up the others.
SELECT l.shard, l.job_uid, l.scheduled_for, l.token, l.attempt, l.claimed_at, l.expires_at,
       j.max_attempts, j.retry, coalesce(j.priority, 0) AS priority, j.pool, (j.job_uid IS NULL OR j.deleted_at IS NOT NULL) AS orphaned
  FROM unnest($shards::smallint[]) sh
 CROSS JOIN LATERAL (
       SELECT * FROM rota.lease x
        WHERE x.shard = sh AND x.expires_at <= $now AND $resumed_at::timestamptz + x.lease_ms * interval '1 ms' <= $now
        LIMIT $limit FOR UPDATE SKIP LOCKED) l
  LEFT JOIN rota.job j ON j.shard = l.shard AND j.job_uid = l.job_uid
 LIMIT $limit;

-- name: settle_attempts
-- End attempts, whichever way: the one statement by which a lease goes. Per token: record the attempt, then finish
-- the run, let it wait again, or bury it. A token that is not in the answer was not ours (or moved: ask once more).
-- A run that somebody wants cancelled neither waits again nor is buried, whatever was told: it is cancelled.
-- No FOR UPDATE here: the DELETE locks, and a second lock costs 54 bytes of WAL.
-- LIMIT 1, here and below: it keeps a look-up by key from being planned as a join over the whole table, which happens
-- when statistics were taken of a table, or of next month's partition of `run`, while it was empty (19,000 -> 1,000/s).
WITH told AS MATERIALIZED (
  SELECT * FROM unnest($shards::smallint[], $job_uids::bigint[], $slots::timestamptz[], $tokens::uuid[],
                       $outcomes::text[], $errors::text[], $states::text[], $charged::integer[],
                       $available_ats::timestamptz[], $ranks::bigint[], $gates::text[], $results::jsonb[])
         t (shard, job_uid, scheduled_for, token, outcome, error, state, charged, available_at, rank, gate, result)),
ended AS (
  DELETE FROM rota.lease WHERE ctid = ANY (ARRAY (
    SELECT held.ctid FROM told
     CROSS JOIN LATERAL (
           SELECT l.ctid FROM rota.lease l
            WHERE l.shard = told.shard AND l.job_uid = told.job_uid AND l.scheduled_for = told.scheduled_for
              AND l.token = told.token LIMIT 1
              -- reap_attempts: FOR UPDATE SKIP LOCKED
           ) held))
     -- reap_attempts: AND expires_at <= $expired_by
  RETURNING shard, job_uid, scheduled_for, token, claimed_at, attempt, worker_id, cancel_requested_at),
settled AS MATERIALIZED (
  SELECT e.shard, e.job_uid, e.scheduled_for, e.token, e.claimed_at, e.attempt, e.worker_id, e.cancel_requested_at,
         CASE WHEN e.cancel_requested_at IS NOT NULL AND t.state IN ('pending', 'dead') THEN 'cancelled'
              ELSE t.state END AS state,
         t.outcome, t.error, t.charged, t.available_at, t.rank, t.gate, t.result
    FROM ended e JOIN told t ON t.token = e.token),
recorded AS (
  INSERT INTO rota.attempt (shard, job_uid, scheduled_for, token, claimed_at, ended_at, attempt, outcome, worker_id, error)
  SELECT shard, job_uid, scheduled_for, token, claimed_at, $now, attempt, outcome, worker_id, error FROM settled),
finished AS (
  UPDATE rota.run r SET outcome = s.state, finished_at = $now, attempt = s.attempt, result = s.result,
         reason = CASE WHEN s.state <> 'cancelled' THEN NULL
                       WHEN s.cancel_requested_at IS NOT NULL THEN 'cancelled on request'
                       WHEN s.outcome = 'cancelled' THEN 'cancelled by its worker'
                       ELSE 'job deleted' END
    FROM settled s
   CROSS JOIN LATERAL (
         SELECT x.tableoid, x.ctid FROM rota.run x
          WHERE x.shard = s.shard AND x.job_uid = s.job_uid AND x.scheduled_for = s.scheduled_for LIMIT 1) at
   WHERE s.state <> 'pending' AND r.scheduled_for = s.scheduled_for AND r.tableoid = at.tableoid AND r.ctid = at.ctid),
waiting AS (
  INSERT INTO rota.pending (shard, job_uid, scheduled_for, rank, available_at, attempt, gate, pool, handler, tenant_id)
  SELECT s.shard, s.job_uid, s.scheduled_for, s.rank, s.available_at, s.charged, s.gate, j.pool, rota.handler_key(j.handler),
         j.tenant_id
    FROM settled s JOIN rota.job j ON j.shard = s.shard AND j.job_uid = s.job_uid
   -- An edit or a delete under way is waited for: its own sweep over the waiting runs could not see this one.
   WHERE s.state = 'pending' FOR SHARE OF j),
buried AS (
  INSERT INTO rota.dead (shard, job_uid, scheduled_for, tenant_id, died_at)
  SELECT s.shard, s.job_uid, s.scheduled_for, coalesce(j.tenant_id, ''), $now
    FROM settled s LEFT JOIN rota.job j ON j.shard = s.shard AND j.job_uid = s.job_uid
   WHERE s.state = 'dead')
SELECT token, state FROM settled;

-- name: reap_attempts
-- like: settle_attempts
-- End attempts whose leases lapsed by $expired_by. That condition stands on the DELETE itself, where it is checked again
-- on a row that was renewed meanwhile; a lease that somebody has locked is passed over.

-- name: cancel_orphans
-- Cancel those of these waiting runs whose job was deleted while they were on their way back to the queue.
WITH gone AS (
  DELETE FROM rota.pending p
   USING unnest($shards::smallint[], $job_uids::bigint[], $slots::timestamptz[]) k (shard, job_uid, scheduled_for),
         rota.job j
   WHERE p.shard = k.shard AND p.job_uid = k.job_uid AND p.scheduled_for = k.scheduled_for
     AND j.shard = k.shard AND j.job_uid = k.job_uid AND j.deleted_at IS NOT NULL
  RETURNING p.shard, p.job_uid, p.scheduled_for, p.attempt)
UPDATE rota.run r SET outcome = 'cancelled', finished_at = $now, attempt = gone.attempt, reason = 'job deleted'
  FROM gone WHERE r.shard = gone.shard AND r.job_uid = gone.job_uid AND r.scheduled_for = gone.scheduled_for
RETURNING r.shard, r.job_uid, r.scheduled_for;

-- name: recorded_outcomes
-- How these attempts ended, if they did, and where their runs stand now: tells a report that is repeated from one that
-- comes too late.
SELECT a.token, a.outcome, v.state
  FROM unnest($shards::smallint[], $job_uids::bigint[], $slots::timestamptz[], $tokens::uuid[])
       h (shard, job_uid, scheduled_for, token)
  JOIN rota.attempt a ON a.shard = h.shard AND a.job_uid = h.job_uid AND a.scheduled_for = h.scheduled_for
                     AND a.token = h.token
 CROSS JOIN LATERAL (
       SELECT x.state FROM rota.job_run x
        WHERE x.shard = h.shard AND x.job_uid = h.job_uid AND x.scheduled_for = h.scheduled_for LIMIT 1) v;
