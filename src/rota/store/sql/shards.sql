-- name: beat_scheduler
-- Say that this scheduler lives, and when its timer last succeeded.
INSERT INTO rota.scheduler (scheduler_id, started_at, expires_at, version, tzdata, last_tick_at)
VALUES ($scheduler_id, $now, $expires_at, $version, $tzdata, $last_tick_at)
ON CONFLICT (scheduler_id) DO UPDATE SET expires_at = excluded.expires_at, version = excluded.version,
  tzdata = excluded.tzdata, last_tick_at = coalesce(excluded.last_tick_at, scheduler.last_tick_at)
RETURNING started_at;

-- name: live_schedulers
SELECT scheduler_id FROM rota.scheduler WHERE expires_at > $now ORDER BY scheduler_id;

-- name: all_shards
SELECT shard, owner, epoch, expires_at FROM rota.shard ORDER BY shard;

-- name: renew_shards
-- Extend the shards still owned under the epoch they were taken with; one left out has another owner.
UPDATE rota.shard s SET expires_at = $expires_at
  FROM unnest($shards::smallint[], $epochs::bigint[]) o (shard, epoch)
 WHERE s.shard = o.shard AND s.epoch = o.epoch AND s.owner = $owner
RETURNING s.shard, s.epoch;

-- name: acquire_shards
-- Take shards that are free now; each gets a new epoch.
UPDATE rota.shard SET owner = $owner, epoch = epoch + 1, expires_at = $expires_at
 WHERE shard IN (SELECT shard FROM rota.shard WHERE shard = ANY ($shards::smallint[]) AND (owner IS NULL OR expires_at <= $now)
                  ORDER BY shard FOR UPDATE SKIP LOCKED)
RETURNING shard, epoch;

-- name: adopt_shards
-- Take over what a process of the same name left leased when it died: a restart does not wait for its own old lease.
-- Should that process live after all, its writes name an older epoch.
UPDATE rota.shard SET epoch = epoch + 1, expires_at = $expires_at
 WHERE owner = $owner
RETURNING shard, epoch;

-- name: release_shards
-- Give shards up, so that somebody else takes them at the next look. The epoch keeps a stale process from giving up
-- what its successor of the same name has adopted.
UPDATE rota.shard s SET owner = NULL, expires_at = $now
  FROM unnest($shards::smallint[], $epochs::bigint[]) o (shard, epoch)
 WHERE s.shard = o.shard AND s.epoch = o.epoch AND s.owner = $owner
RETURNING s.shard;

-- name: forget_scheduler
DELETE FROM rota.scheduler WHERE scheduler_id = $scheduler_id RETURNING scheduler_id;

-- name: forget_lapsed_schedulers
-- Rows of schedulers that have been gone for long, at most $limit: nobody reads them any more.
DELETE FROM rota.scheduler WHERE ctid = ANY (ARRAY (
       SELECT ctid FROM rota.scheduler WHERE expires_at <= $before LIMIT $limit FOR UPDATE SKIP LOCKED))
RETURNING scheduler_id;
