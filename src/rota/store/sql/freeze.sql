-- name: freeze
-- Freeze a tenant, or with * everything. What is frozen already gets the new reason.
INSERT INTO rota.freeze AS f (tenant_id, reason, actor, frozen_at) VALUES ($tenant_id, $reason, $actor, $now)
ON CONFLICT (tenant_id) DO UPDATE SET reason = excluded.reason, actor = excluded.actor, lifted_at = NULL,
       frozen_at = CASE WHEN f.lifted_at IS NULL THEN f.frozen_at ELSE excluded.frozen_at END
RETURNING tenant_id, reason, actor, frozen_at;

-- name: lift
-- End a freeze. It waits for a scheduler that defers slots for it at this moment.
UPDATE rota.freeze SET lifted_at = $now WHERE tenant_id = $tenant_id AND lifted_at IS NULL
RETURNING tenant_id, reason, actor, frozen_at;

-- name: freezes_of
-- The freezes that hold a tenant, or with NULL all.
SELECT tenant_id, reason, actor, frozen_at FROM rota.freeze
 WHERE lifted_at IS NULL AND ($tenant_id::text IS NULL OR tenant_id IN ('*', $tenant_id))
 ORDER BY tenant_id LIMIT $limit;

-- name: lifted
-- Freezes that are over and may have deferred slots that are not back yet.
SELECT tenant_id FROM rota.freeze WHERE lifted_at IS NOT NULL ORDER BY lifted_at LIMIT $limit;

-- name: defer_slots
-- Put schedules whose slot came due in a freeze out of the schedulers' sight; next_slot stays. The freeze is locked, so
-- that it cannot end unseen: what is deferred by one that has ended would never come back. A schedule or a freeze
-- that somebody holds is passed over.
WITH held AS MATERIALIZED (
  SELECT tenant_id FROM rota.freeze WHERE lifted_at IS NULL FOR SHARE SKIP LOCKED),
due AS MATERIALIZED (
  SELECT s.at, f.tenant_id
    FROM unnest($shards::smallint[], $job_uids::bigint[], $due_ats::timestamptz[], $versions::bigint[],
                $tenant_ids::text[]) d (shard, job_uid, due_at, version, tenant_id)
   CROSS JOIN LATERAL (
         SELECT h.tenant_id FROM held h WHERE h.tenant_id IN ('*', d.tenant_id) ORDER BY h.tenant_id LIMIT 1) f
   CROSS JOIN LATERAL (
         SELECT x.ctid AS at FROM rota.schedule x
          WHERE x.shard = d.shard AND x.job_uid = d.job_uid AND x.next_run_at = d.due_at AND x.version = d.version
          LIMIT 1 FOR NO KEY UPDATE SKIP LOCKED) s)
UPDATE rota.schedule SET next_run_at = $never,
       frozen_by = (SELECT d.tenant_id FROM due d WHERE d.at = schedule.ctid)
 WHERE ctid = ANY (ARRAY (SELECT d.at FROM due d))
RETURNING job_uid;

-- name: bring_back
-- Let schedules that a freeze deferred be due again; one that was paused or edited meanwhile is as its editor left it.
UPDATE rota.schedule
   SET next_run_at = CASE WHEN next_run_at = $never THEN next_slot ELSE next_run_at END, frozen_by = NULL
 WHERE ctid = ANY (ARRAY (
       SELECT ctid FROM rota.schedule WHERE frozen_by = $tenant_id LIMIT $limit FOR UPDATE SKIP LOCKED))
RETURNING job_uid;

-- name: forget_freeze
-- Forget a freeze that is over, once nothing is left of it.
DELETE FROM rota.freeze f
 WHERE f.tenant_id = $tenant_id AND f.lifted_at IS NOT NULL
   AND NOT EXISTS (SELECT FROM rota.schedule s WHERE s.frozen_by = $tenant_id)
RETURNING tenant_id;
