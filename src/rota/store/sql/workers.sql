-- name: announce_worker
-- Say that this worker process lives and what it knows.
INSERT INTO rota.worker (instance, worker_id, pool, handlers, concurrency, started_at, expires_at, version, tzdata)
VALUES ($instance, $worker_id, $pool, $handlers::text[], $concurrency, $now, $expires_at, $version, $tzdata)
ON CONFLICT (instance) DO UPDATE SET pool = excluded.pool, handlers = excluded.handlers,
  concurrency = excluded.concurrency, expires_at = excluded.expires_at
RETURNING started_at;

-- name: retire_worker
DELETE FROM rota.worker WHERE instance = $instance RETURNING instance;

-- name: forget_lapsed_workers
DELETE FROM rota.worker WHERE expires_at <= $before RETURNING worker_id;

-- name: live_workers
SELECT instance, worker_id, pool, handlers, concurrency, started_at, expires_at, version, tzdata
  FROM rota.worker WHERE expires_at > $now ORDER BY worker_id, instance;

-- name: park_unknown_handlers
-- Put open runs that no live worker of their pool can run behind the handler gate, so that no claim scans them again
-- and again. Looks at the first $limit runs of each pool that has live workers, however deep its queue is: what nobody
-- can run gathers there. Without live workers nobody scans, and nothing needs parking.
WITH known AS MATERIALIZED (
  SELECT pool, array_agg(DISTINCT h) AS handlers
    FROM rota.worker CROSS JOIN LATERAL unnest(handlers) h
   WHERE expires_at > $now GROUP BY pool)
UPDATE rota.pending SET gate = 'handler'
 WHERE ctid = ANY (ARRAY (
       SELECT head.ctid FROM known
        CROSS JOIN LATERAL (
              SELECT p.ctid, p.handler FROM rota.pending p
               WHERE p.pool = known.pool AND p.gate = 'open'
               ORDER BY p.rank LIMIT $limit) head
        WHERE head.handler <> ALL (known.handlers)))
   AND gate = 'open'
RETURNING handler;

-- name: unpark_known_handlers
-- Open the gate for runs whose handler a live worker of their pool knows now.
UPDATE rota.pending SET gate = 'open'
 WHERE ctid = ANY (ARRAY (
       SELECT p.ctid FROM (SELECT DISTINCT w.pool, h FROM rota.worker w CROSS JOIN LATERAL unnest(w.handlers) h
                            WHERE w.expires_at > $now) known
        CROSS JOIN LATERAL (
              SELECT q.ctid FROM rota.pending q
               WHERE q.pool = known.pool AND q.handler = known.h AND q.gate = 'handler'
               LIMIT $limit FOR UPDATE SKIP LOCKED) p))
RETURNING pool;
