-- name: announce_worker
-- Say that this worker process lives and what it knows; is it to drain? No row: the instance is another tenant's.
INSERT INTO rota.worker (instance, worker_id, pool, handlers, concurrency, started_at, expires_at, version, tzdata,
  tenant_id, last_claim_at)
VALUES ($instance, $worker_id, $pool, $handlers::text[], $concurrency, $now, $expires_at, $version, $tzdata,
  $tenant_id, $last_claim_at)
ON CONFLICT (instance) DO UPDATE SET pool = excluded.pool, handlers = excluded.handlers,
  concurrency = excluded.concurrency, expires_at = excluded.expires_at,
  last_claim_at = coalesce(excluded.last_claim_at, worker.last_claim_at)
  WHERE worker.tenant_id IS NOT DISTINCT FROM excluded.tenant_id AND worker.worker_id = excluded.worker_id
RETURNING draining_at IS NOT NULL AS draining;

-- name: retire_worker
DELETE FROM rota.worker WHERE instance = $instance AND tenant_id IS NOT DISTINCT FROM $tenant_id RETURNING instance;

-- name: forget_lapsed_workers
DELETE FROM rota.worker WHERE expires_at <= $before RETURNING worker_id;

-- name: live_workers
-- The live workers of one tenant, or all.
SELECT instance, worker_id, tenant_id, pool, handlers, concurrency, started_at, expires_at, last_claim_at, draining_at,
       version, tzdata
  FROM rota.worker WHERE expires_at > $now AND ($tenant_id::text IS NULL OR tenant_id = $tenant_id)
 ORDER BY worker_id, instance;

-- name: drain_worker
-- Let every live process of a worker claim no more. It is told when it next says that it lives.
UPDATE rota.worker SET draining_at = coalesce(draining_at, $now)
 WHERE worker_id = $worker_id AND expires_at > $now AND ($tenant_id::text IS NULL OR tenant_id = $tenant_id)
RETURNING instance, worker_id, tenant_id, pool, handlers, concurrency, started_at, expires_at, last_claim_at,
          draining_at, version, tzdata;

-- name: park_unknown_handlers
-- Put open runs that no live worker of their pool can run behind the handler gate, so that no claim scans them again
-- and again. Looks where claims look: at the first $limit runs of each pool, and of each tenant in a pool, that has live
-- workers, however deep its queue is: what nobody can run gathers there. Where no worker lives nobody scans, and nothing
-- needs parking. A worker that drains takes nothing, so what it knows counts for nothing.
WITH known AS MATERIALIZED (
  SELECT pool, tenant_id, array_agg(DISTINCT h) AS handlers, bool_or(h = '*') AS any_handler
    FROM rota.worker CROSS JOIN LATERAL unnest(handlers) h
   WHERE expires_at > $now AND draining_at IS NULL GROUP BY pool, tenant_id),
heads AS MATERIALIZED (
  SELECT head.ctid, head.pool, head.handler, head.tenant_id FROM known k
   CROSS JOIN LATERAL (
         SELECT p.ctid, p.pool, p.handler, p.tenant_id FROM rota.pending p
          WHERE k.tenant_id IS NULL AND p.pool = k.pool AND p.gate = 'open'
          ORDER BY p.rank LIMIT $limit) head
   WHERE head.handler <> ALL (k.handlers) AND NOT (k.any_handler AND head.handler NOT IN ('shell', 'http'))
  UNION ALL
  SELECT head.ctid, head.pool, head.handler, head.tenant_id FROM known k
   CROSS JOIN LATERAL (
         SELECT p.ctid, p.pool, p.handler, p.tenant_id FROM rota.pending p
          WHERE p.tenant_id = k.tenant_id AND p.pool = k.pool AND p.gate BETWEEN 'open' AND 'open'
          ORDER BY p.rank LIMIT $limit) head
   WHERE head.handler <> ALL (k.handlers) AND NOT (k.any_handler AND head.handler NOT IN ('shell', 'http')))
UPDATE rota.pending SET gate = 'handler'
 WHERE ctid = ANY (ARRAY (
       SELECT h.ctid FROM heads h
        WHERE NOT EXISTS (
              SELECT FROM known k
               WHERE k.pool = h.pool AND (k.tenant_id IS NULL OR k.tenant_id = h.tenant_id)
                 AND (h.handler = ANY (k.handlers) OR k.any_handler AND h.handler NOT IN ('shell', 'http')))))
   AND gate = 'open'
RETURNING handler;

-- name: unpark_known_handlers
-- Open the gate for runs that a live worker of their pool can run now. Each kind of knowledge has a range of an index of
-- its own: a handler or any, of all tenants or of one.
WITH known AS MATERIALIZED (
  SELECT DISTINCT w.pool, w.tenant_id, h FROM rota.worker w CROSS JOIN LATERAL unnest(w.handlers) h
   WHERE w.expires_at > $now AND w.draining_at IS NULL)
UPDATE rota.pending SET gate = 'open'
 WHERE ctid = ANY (ARRAY (
       SELECT p.ctid FROM known k
        CROSS JOIN LATERAL (
              SELECT q.ctid FROM rota.pending q
               WHERE k.tenant_id IS NULL AND q.pool = k.pool AND q.handler = k.h AND q.gate = 'handler'
               LIMIT $limit FOR UPDATE SKIP LOCKED) p
       UNION ALL
       SELECT p.ctid FROM known k
        CROSS JOIN LATERAL (
              SELECT q.ctid FROM rota.pending q
               WHERE q.pool = k.pool AND q.handler = k.h AND q.tenant_id = k.tenant_id AND q.gate = 'handler'
               LIMIT $limit FOR UPDATE SKIP LOCKED) p
       UNION ALL
       SELECT p.ctid FROM known k
        CROSS JOIN LATERAL (
              SELECT q.ctid FROM rota.pending q
               WHERE k.h = '*' AND k.tenant_id IS NULL AND q.pool = k.pool
                 AND q.gate = 'handler' AND q.handler NOT IN ('shell', 'http')
               LIMIT $limit FOR UPDATE SKIP LOCKED) p
       UNION ALL
       SELECT p.ctid FROM known k
        CROSS JOIN LATERAL (
              SELECT q.ctid FROM rota.pending q
               WHERE k.h = '*' AND q.pool = k.pool AND q.tenant_id = k.tenant_id
                 AND q.gate = 'handler' AND q.handler NOT IN ('shell', 'http')
               LIMIT $limit FOR UPDATE SKIP LOCKED) p))
RETURNING pool;
