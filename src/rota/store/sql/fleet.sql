-- name: fleet_counts
-- How much there is of all tenants' rows; no count goes beyond $most.
SELECT (SELECT count(*) FROM (SELECT FROM rota.job WHERE deleted_at IS NULL LIMIT $most) j) AS jobs,
       (SELECT count(*) FROM (SELECT FROM rota.lease LIMIT $most) l) AS running,
       (SELECT count(*) FROM (SELECT FROM rota.dead LIMIT $most) d) AS dead,
       (SELECT count(*) FROM rota.worker WHERE expires_at > $now) AS workers;

-- name: tenant_counts
-- How much there is of a tenant's own rows, and how many workers take its runs; no count goes beyond $most. A lease carries no tenant, so it is looked up
-- at its job: LIMIT 1 keeps that one probe per lease.
SELECT (SELECT count(*) FROM (
          SELECT FROM rota.job WHERE tenant_id = $tenant_id AND deleted_at IS NULL LIMIT $most) j) AS jobs,
       (SELECT count(*) FROM (SELECT shard, job_uid FROM rota.lease LIMIT $most) l
         CROSS JOIN LATERAL (
               SELECT j.tenant_id FROM rota.job j WHERE j.shard = l.shard AND j.job_uid = l.job_uid LIMIT 1) j
         WHERE j.tenant_id = $tenant_id) AS running,
       (SELECT count(*) FROM (SELECT FROM rota.dead WHERE tenant_id = $tenant_id LIMIT $most) d) AS dead,
       (SELECT count(*) FROM rota.worker
         WHERE expires_at > $now AND (tenant_id IS NULL OR tenant_id = $tenant_id)) AS workers;

-- name: depths
-- How many runs wait in each pool behind each gate, of a tenant or of all, and since when the first of them could have
-- started; over at most $most runs.
SELECT pool, gate, count(*) AS runs, min(available_at) AS oldest
  FROM (SELECT pool, gate, available_at FROM rota.pending
         WHERE $tenant_id::text IS NULL OR tenant_id = $tenant_id LIMIT $most) p
 GROUP BY pool, gate ORDER BY pool, gate;

-- name: fleet_health
-- When a scheduler's timer and a live worker's claim last succeeded. A scheduler that is gone tells since when nobody
-- ticks; without workers nobody has to claim, and one that drains is not asked to.
SELECT (SELECT max(last_tick_at) FROM rota.scheduler) AS tick_at,
       (SELECT max(last_claim_at) FROM rota.worker WHERE expires_at > $now AND draining_at IS NULL) AS claim_at,
       (SELECT count(*) FROM rota.worker WHERE expires_at > $now AND draining_at IS NULL) AS workers;
