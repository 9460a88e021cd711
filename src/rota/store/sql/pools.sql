-- name: lock_pool
-- A pool's settings, locked until the transaction ends.
SELECT * FROM rota.pool WHERE pool = $pool FOR NO KEY UPDATE;

-- name: add_pool
-- No row: somebody else has just made it.
INSERT INTO rota.pool (pool, ageing_ms, shed_above, updated_at) VALUES ($pool, $ageing_ms, $shed_above, $now)
ON CONFLICT (pool) DO NOTHING
RETURNING pool;

-- name: change_pool
UPDATE rota.pool SET ageing_ms = $ageing_ms, shed_above = $shed_above, updated_at = $now WHERE pool = $pool
RETURNING pool;

-- name: list_pools
SELECT pool, ageing_ms, shed_above, updated_at FROM rota.pool ORDER BY pool LIMIT $limit;

-- name: get_pool
SELECT pool, ageing_ms, shed_above, updated_at FROM rota.pool WHERE pool = $pool;

-- name: rerank_pending
-- Give a batch of waiting runs the ranks of their pool's present ageing: of the $limit runs after a given one, in the
-- order of their keys, those of the pool whose rank is another. The answer is the last run that was looked at, with how
-- many were looked at and changed. What somebody else holds at this moment is left for the next round.
WITH looked AS MATERIALIZED (
  SELECT p.shard, p.job_uid, p.scheduled_for, p.pool, p.rank, p.available_at, p.priority FROM rota.pending p
   WHERE (p.shard, p.job_uid, p.scheduled_for) > ($shard::smallint, $job_uid::bigint, $scheduled_for::timestamptz)
   ORDER BY p.shard, p.job_uid, p.scheduled_for LIMIT $limit
), wrong AS MATERIALIZED (
  SELECT t.ctid FROM looked l
   CROSS JOIN LATERAL (
         SELECT p.ctid FROM rota.pending p
          WHERE p.shard = l.shard AND p.job_uid = l.job_uid AND p.scheduled_for = l.scheduled_for
          LIMIT 1 FOR UPDATE SKIP LOCKED) t
   WHERE l.pool = $pool AND l.rank <> rota.rank_of(l.available_at, l.priority, l.pool)
), changed AS (
  UPDATE rota.pending p SET rank = rota.rank_of(p.available_at, p.priority, p.pool)
   WHERE p.ctid = ANY (ARRAY (SELECT w.ctid FROM wrong w)) AND p.pool = $pool
  RETURNING p.job_uid
)
SELECT l.shard, l.job_uid, l.scheduled_for, (SELECT count(*) FROM looked) AS looked,
       (SELECT count(*) FROM changed) AS changed
  FROM looked l ORDER BY l.shard DESC, l.job_uid DESC, l.scheduled_for DESC LIMIT 1;

-- name: waiting_by_tenant
-- How many runs of each tenant wait in a pool, at most $most of each, with the tenant's weight; at most $tenants tenants
-- of those with open runs, and as many of those with runs behind another gate. The tenants are found by one probe of an
-- index each, however many runs they have.
WITH RECURSIVE opened (tenant_id) AS (
  (SELECT p.tenant_id FROM rota.pending p
    WHERE p.pool = $pool AND p.gate = 'open' ORDER BY p.tenant_id LIMIT 1)
  UNION ALL
  SELECT n.tenant_id FROM opened o
   CROSS JOIN LATERAL (
         SELECT p.tenant_id FROM rota.pending p
          WHERE p.pool = $pool AND p.gate = 'open' AND p.tenant_id > o.tenant_id ORDER BY p.tenant_id LIMIT 1) n
), held (tenant_id) AS (
  (SELECT p.tenant_id FROM rota.pending p
    WHERE p.pool = $pool AND p.gate || '' IN ('time', 'handler', 'limit') ORDER BY p.tenant_id LIMIT 1)
  UNION ALL
  SELECT n.tenant_id FROM held h
   CROSS JOIN LATERAL (
         SELECT p.tenant_id FROM rota.pending p
          WHERE p.pool = $pool AND p.gate || '' IN ('time', 'handler', 'limit') AND p.tenant_id > h.tenant_id
          ORDER BY p.tenant_id LIMIT 1) n
), tenants AS (
  (SELECT tenant_id FROM opened LIMIT $tenants) UNION (SELECT tenant_id FROM held LIMIT $tenants)
)
SELECT t.tenant_id,
       coalesce((SELECT x.weight FROM rota.tenant x WHERE x.tenant_id = t.tenant_id), 1) AS weight,
       (SELECT count(*) FROM (
               SELECT FROM rota.pending p
                WHERE p.pool = $pool AND p.tenant_id = t.tenant_id AND p.gate = 'open' LIMIT $most) o)
       + (SELECT count(*) FROM (
                 SELECT FROM rota.pending p
                  WHERE p.pool = $pool AND p.tenant_id = t.tenant_id AND p.gate || '' IN ('time', 'handler', 'limit')
                  LIMIT $most) h) AS runs
  FROM tenants t;
