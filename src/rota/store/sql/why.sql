-- name: why_run
-- Where a run stands, with all that tells why it waits: its row of each table, how its last attempt ended, and how many
-- schedulers there are to see its time come.
SELECT r.outcome, r.finished_at, j.job_id,
       coalesce(r.reason, CASE WHEN r.outcome = 'dead' THEN (
           SELECT left(split_part(a.error, E'\n', 1), 200) FROM rota.attempt a
            WHERE a.shard = $shard AND a.job_uid = $job_uid AND a.scheduled_for = $scheduled_for
            ORDER BY a.ended_at DESC LIMIT 1) END) AS reason,
       l.worker_id, l.claimed_at, l.expires_at, l.cancel_requested_at, l.set_apart,
       p.gate, p.available_at, p.deadline_at, p.limit_key, p.pool, p.handler, p.attempt, p.losses, p.rank,
       coalesce(j.max_attempts, 1) AS max_attempts, coalesce(j.max_losses, 1) AS max_losses,
       coalesce(j.jitter_ms, 0) AS jitter_ms,
       (SELECT a.outcome FROM rota.attempt a
         WHERE a.shard = $shard AND a.job_uid = $job_uid AND a.scheduled_for = $scheduled_for
         ORDER BY a.ended_at DESC LIMIT 1) AS last_outcome,
       (SELECT count(*) FROM rota.scheduler s WHERE s.expires_at > $now) AS schedulers
  FROM rota.run r
  JOIN rota.job j ON j.shard = r.shard AND j.job_uid = r.job_uid
  LEFT JOIN rota.pending p ON p.shard = r.shard AND p.job_uid = r.job_uid AND p.scheduled_for = r.scheduled_for
  LEFT JOIN rota.lease l ON l.shard = r.shard AND l.job_uid = r.job_uid AND l.scheduled_for = r.scheduled_for
 WHERE r.shard = $shard AND r.job_uid = $job_uid AND r.scheduled_for = $scheduled_for AND j.tenant_id = $tenant_id;

-- name: why_limits
-- The limits that a waiting run is under: what is free of each, and how many of its tenant's runs are parked on it
-- before this one. No count goes beyond $most.
SELECT lim.limit_key, coalesce(lim.name, lim.kind) AS name, lim.kind, lim.weight, lim.permits, lim.rate, lim.burst,
       (SELECT count(*) FROM rota.permit x WHERE x.limit_key = lim.limit_key AND x.token IS NOT NULL) AS in_use,
       coalesce((SELECT s.cost FROM rota.saving s
                  WHERE s.limit_key = lim.limit_key AND s.saves AND s.until > $now
                    AND (s.tenant_id, s.pool) <> (p.tenant_id, p.pool)), 0) AS saved,
       CASE WHEN lim.rate IS NOT NULL THEN
         rota.tokens_at($now, lim.burst, lim.rate, b.tokens, b.refilled_at) END AS tokens,
       (SELECT count(*) FROM (
          SELECT FROM rota.pending q
           WHERE q.limit_key = lim.limit_key AND q.tenant_id = p.tenant_id AND q.pool = p.pool AND q.gate = 'limit'
             AND q.rank < p.rank
           LIMIT $most) q) AS ahead
  FROM rota.pending p
 CROSS JOIN LATERAL (
       SELECT x.* FROM rota.job x WHERE x.shard = p.shard AND x.job_uid = p.job_uid LIMIT 1) j
 CROSS JOIN LATERAL (
       SELECT x.payload FROM rota.run x
        WHERE x.shard = p.shard AND x.job_uid = p.job_uid AND x.scheduled_for = p.scheduled_for LIMIT 1) r
 CROSS JOIN LATERAL rota.limits_on(j.tenant_id, j.job_uid, j.overlap, j.max_concurrency, j.concurrency_key,
                                   j.key_concurrency, j.limits, coalesce(r.payload, j.payload)) lim
  LEFT JOIN rota.bucket b ON b.limit_key = lim.limit_key
 WHERE p.shard = $shard AND p.job_uid = $job_uid AND p.scheduled_for = $scheduled_for;

-- name: why_holders
-- Which runs hold permits of a limit: a tenant's own, the longest first, at most $shown, and how many those of all
-- others are. No index knows what a lease holds, so that renewals stay cheap: at most $most leases are looked at.
SELECT count(*) FILTER (WHERE held.is_own) AS own_count, count(*) FILTER (WHERE NOT held.is_own) AS others,
       (array_agg(held.run_id ORDER BY held.claimed_at, held.run_id) FILTER (WHERE held.is_own))[1:$shown] AS run_ids,
       (array_agg(held.claimed_at ORDER BY held.claimed_at, held.run_id) FILTER (WHERE held.is_own))[1:$shown] AS sinces,
       (array_agg(held.worker_id ORDER BY held.claimed_at, held.run_id) FILTER (WHERE held.is_own))[1:$shown] AS worker_ids
  FROM (SELECT rota.run_id(l.job_uid, l.scheduled_for) AS run_id, l.claimed_at, l.worker_id,
               j.tenant_id = $tenant_id AS is_own
          FROM (SELECT x.* FROM rota.lease x WHERE x.permit_keys IS NOT NULL LIMIT $most) l
         CROSS JOIN LATERAL (
               SELECT x.tenant_id FROM rota.job x WHERE x.shard = l.shard AND x.job_uid = l.job_uid LIMIT 1) j
         WHERE l.permit_keys @> ARRAY[$limit_key::text]) held;

-- name: why_workers
-- The live workers that would take a tenant's runs: by pool, and by whether they drain, know a handler, and serve that
-- tenant alone.
SELECT w.pool, w.draining_at IS NOT NULL AS is_draining, w.tenant_id IS NOT NULL AS is_own,
       $handler::text = ANY (w.handlers) OR '*' = ANY (w.handlers) AND $handler NOT IN ('shell', 'http') AS knows,
       count(*) AS workers, sum(w.claim_rate) AS rate
  FROM rota.worker w
 WHERE w.expires_at > $now AND (w.tenant_id IS NULL OR w.tenant_id = $tenant_id)
 GROUP BY 1, 2, 3, 4 ORDER BY 1, 2, 3, 4;

-- name: why_queue
-- What goes before a run that can start: its tenant's open runs of better rank in its pool, at most $most, and the other
-- tenants that have open runs there and are not frozen, at most $most_tenants, with their weights. One step down the
-- index finds a tenant.
WITH RECURSIVE turns AS (
  SELECT (SELECT min(p.tenant_id) FROM rota.pending p WHERE p.pool = $pool AND p.gate = 'open') AS tenant_id, 1 AS turn
  UNION ALL
  SELECT (SELECT min(p.tenant_id) FROM rota.pending p
           WHERE p.pool = $pool AND p.gate = 'open' AND p.tenant_id > t.tenant_id), t.turn + 1
    FROM turns t WHERE t.tenant_id IS NOT NULL AND t.turn <= $most_tenants),
weighed AS (
  SELECT t.tenant_id, coalesce(own.weight, 1) AS weight
    FROM turns t
    LEFT JOIN LATERAL (SELECT x.weight FROM rota.tenant x WHERE x.tenant_id = t.tenant_id LIMIT 1) own ON true
   WHERE t.tenant_id IS NOT NULL
     AND NOT EXISTS (SELECT FROM rota.freeze f WHERE f.tenant_id = t.tenant_id AND f.lifted_at IS NULL))
SELECT (SELECT count(*) FROM (
          SELECT FROM rota.pending p
           WHERE p.pool = $pool AND p.tenant_id = $tenant_id AND p.gate = 'open' AND p.rank < $rank
             AND (p.deadline_at IS NULL OR p.deadline_at > $now) LIMIT $most) a) AS ahead,
       (SELECT count(*) FROM weighed w WHERE w.tenant_id <> $tenant_id) AS tenants,
       coalesce((SELECT w.weight FROM weighed w WHERE w.tenant_id = $tenant_id), 1) AS weight,
       coalesce((SELECT sum(w.weight) FROM weighed w WHERE w.tenant_id <> $tenant_id), 0) AS other_weight;

-- name: oldest_waiting
-- The slot of a job's oldest run that waits, and how many schedulers there are to make runs of its next slot.
SELECT (SELECT p.scheduled_for FROM rota.pending p WHERE p.shard = $shard AND p.job_uid = $job_uid
         ORDER BY p.scheduled_for LIMIT 1) AS scheduled_for,
       (SELECT count(*) FROM rota.scheduler s WHERE s.expires_at > $now) AS schedulers;
