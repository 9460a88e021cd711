-- name: announce_worker
-- Say that this worker process lives and what it knows; is it to drain? No row: the instance is another tenant's.
-- What it claimed since it last told of it becomes half of its claim rate, the other half is what that was before. No
-- news changes nothing; a count that falls, or a clock that stands, says nothing of a rate.
INSERT INTO rota.worker (instance, worker_id, pool, handlers, concurrency, started_at, expires_at, version, tzdata,
  tenant_id, last_claim_at, claimed, announced_at)
VALUES ($instance, $worker_id, $pool, $handlers::text[], $concurrency, $now, $expires_at, $version, $tzdata,
  $tenant_id, $last_claim_at, coalesce($claimed::bigint, 0),
  CASE WHEN $claimed::bigint IS NOT NULL THEN $now::timestamptz END)
ON CONFLICT (instance) DO UPDATE SET pool = excluded.pool, handlers = excluded.handlers,
  concurrency = excluded.concurrency, expires_at = excluded.expires_at,
  last_claim_at = coalesce(excluded.last_claim_at, worker.last_claim_at),
  claimed = coalesce($claimed::bigint, worker.claimed),
  announced_at = coalesce(excluded.announced_at, worker.announced_at),
  claim_rate = CASE WHEN $claimed::bigint >= worker.claimed AND $now::timestamptz > worker.announced_at THEN
    (SELECT 0.5 * coalesce(worker.claim_rate, latest.rate) + 0.5 * latest.rate
       FROM (SELECT ($claimed::bigint - worker.claimed)
                    / extract(epoch FROM $now::timestamptz - worker.announced_at)::float8) latest (rate))
    ELSE worker.claim_rate END
  WHERE worker.tenant_id IS NOT DISTINCT FROM excluded.tenant_id AND worker.worker_id = excluded.worker_id
RETURNING draining_at IS NOT NULL AS draining;

-- name: retire_worker
DELETE FROM rota.worker WHERE instance = $instance AND tenant_id IS NOT DISTINCT FROM $tenant_id RETURNING instance;

-- name: forget_lapsed_workers
-- Rows of workers that have been gone for long, at most $limit.
DELETE FROM rota.worker WHERE ctid = ANY (ARRAY (
       SELECT ctid FROM rota.worker WHERE expires_at <= $before LIMIT $limit FOR UPDATE SKIP LOCKED))
RETURNING worker_id;

-- name: live_workers
-- The live workers of one tenant, or all.
SELECT instance, worker_id, tenant_id, pool, handlers, concurrency, started_at, expires_at, last_claim_at, draining_at,
       version, tzdata, claim_rate
  FROM rota.worker WHERE expires_at > $now AND ($tenant_id::text IS NULL OR tenant_id = $tenant_id)
 ORDER BY worker_id, instance;

-- name: drain_worker
-- Let every live process of a worker claim no more. It is told when it next says that it lives.
UPDATE rota.worker SET draining_at = coalesce(draining_at, $now)
 WHERE worker_id = $worker_id AND expires_at > $now AND ($tenant_id::text IS NULL OR tenant_id = $tenant_id)
RETURNING instance, worker_id, tenant_id, pool, handlers, concurrency, started_at, expires_at, last_claim_at,
          draining_at, version, tzdata, claim_rate;

-- name: park_unknown_handlers
-- Put open runs that no live worker of their pool can run behind the handler gate, so that no claim scans them again
-- and again. Looks where claims look: at the first runs of each tenant in each pool, $limit in all, however deep the queue
-- is: what nobody can run gathers there. Goes on behind a pool's tenant, and says where it ended. Where no worker lives
-- nobody scans, and nothing needs parking. What somebody holds is passed over. A worker that drains takes nothing, so what it knows counts for nothing.
WITH RECURSIVE known AS MATERIALIZED (
  SELECT pool, tenant_id, array_agg(DISTINCT h) AS handlers, bool_or(h = '*') AS any_handler
    FROM rota.worker CROSS JOIN LATERAL unnest(handlers) h
   WHERE expires_at > $now AND draining_at IS NULL GROUP BY pool, tenant_id),
walk (pool, tenant_id, place) AS (
  SELECT $after_pool::text, $after_tenant::text, 0
  UNION ALL
  SELECT next.pool, next.tenant_id, w.place + 1
    FROM walk w
   CROSS JOIN LATERAL (
         SELECT p.pool, p.tenant_id FROM rota.pending p
          WHERE p.gate = 'open' AND (p.pool, p.tenant_id) > (w.pool, w.tenant_id)
          ORDER BY p.pool, p.tenant_id LIMIT 1) next
   WHERE w.place < $limit),
met AS MATERIALIZED (
  SELECT w.pool, w.tenant_id, $limit / count(*) OVER () AS part FROM walk w
   WHERE w.place > 0 AND EXISTS (
         SELECT FROM known k WHERE k.pool = w.pool AND (k.tenant_id IS NULL OR k.tenant_id = w.tenant_id))),
heads AS MATERIALIZED (
  SELECT m.pool, m.tenant_id, m.part, head.ctid FROM met m
   CROSS JOIN LATERAL (
         SELECT p.ctid, p.handler FROM rota.pending p
          WHERE p.pool = m.pool AND p.gate = 'open' AND p.tenant_id = m.tenant_id
          ORDER BY p.rank LIMIT m.part) head
   WHERE NOT EXISTS (
         SELECT FROM known k
          WHERE k.pool = m.pool AND (k.tenant_id IS NULL OR k.tenant_id = m.tenant_id)
            AND (head.handler = ANY (k.handlers) OR k.any_handler AND head.handler NOT IN ('shell', 'http')))),
-- What those did not use goes to the queues of which all that was looked at is to be parked: there is more behind.
deep AS MATERIALIZED (
  SELECT h.pool, h.tenant_id, h.part, ($limit - (SELECT count(*) FROM heads)) / count(*) OVER () AS more
    FROM heads h GROUP BY h.pool, h.tenant_id, h.part HAVING count(*) >= h.part),
behind AS MATERIALIZED (
  SELECT next.ctid FROM deep d
   CROSS JOIN LATERAL (
         SELECT p.ctid, p.handler FROM rota.pending p
          WHERE p.pool = d.pool AND p.gate = 'open' AND p.tenant_id = d.tenant_id
          ORDER BY p.rank OFFSET d.part LIMIT d.more) next
   WHERE NOT EXISTS (
         SELECT FROM known k
          WHERE k.pool = d.pool AND (k.tenant_id IS NULL OR k.tenant_id = d.tenant_id)
            AND (next.handler = ANY (k.handlers) OR k.any_handler AND next.handler NOT IN ('shell', 'http')))),
parked AS (
  UPDATE rota.pending SET gate = 'handler'
   WHERE ctid = ANY (ARRAY (
         SELECT free.ctid FROM (SELECT h.ctid FROM heads h UNION ALL SELECT b.ctid FROM behind b) x (at)
          CROSS JOIN LATERAL (
                SELECT p.ctid FROM rota.pending p WHERE p.ctid = x.at AND p.gate = 'open'
                 LIMIT 1 FOR UPDATE SKIP LOCKED) free)) AND gate = 'open'
  RETURNING handler)
SELECT p.handler, NULL::text AS pool, NULL::text AS tenant_id FROM parked p
UNION ALL
SELECT NULL, w.pool, w.tenant_id FROM walk w WHERE w.place = $limit;

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
               LIMIT $limit FOR UPDATE SKIP LOCKED) p
       LIMIT $limit))
RETURNING pool;
