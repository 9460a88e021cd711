-- name: tell_set_aside
-- Write down which jobs are set aside, and why. One whose shard has another owner by now is that one's to tell of.
INSERT INTO rota.set_aside AS a (shard, job_uid, what, epoch, reason, since)
SELECT n.shard, n.job_uid, n.what, n.epoch, n.reason, $now
  FROM unnest($shards::smallint[], $job_uids::bigint[], $whats::text[], $epochs::bigint[], $reasons::text[])
       n (shard, job_uid, what, epoch, reason)
 ORDER BY n.shard, n.job_uid, n.what
ON CONFLICT (shard, job_uid, what) DO UPDATE SET epoch = excluded.epoch, reason = excluded.reason,
       since = CASE WHEN a.epoch = excluded.epoch THEN a.since ELSE excluded.since END
  WHERE a.epoch <= excluded.epoch
RETURNING job_uid;

-- name: forget_set_aside
-- These had their turn. What another owner of the shard says stays.
DELETE FROM rota.set_aside WHERE ctid = ANY (ARRAY (
       SELECT held.ctid
         FROM unnest($shards::smallint[], $job_uids::bigint[], $whats::text[], $epochs::bigint[])
              n (shard, job_uid, what, epoch)
        CROSS JOIN LATERAL (
              SELECT a.ctid FROM rota.set_aside a
               WHERE a.shard = n.shard AND a.job_uid = n.job_uid AND a.what = n.what AND a.epoch = n.epoch
               LIMIT 1 FOR UPDATE) held))
RETURNING job_uid;

-- name: forget_untrue
-- Remove what former owners of shards said and nobody repeats, at most $limit rows.
DELETE FROM rota.set_aside WHERE ctid = ANY (ARRAY (
       SELECT a.ctid FROM rota.set_aside a
        WHERE NOT EXISTS (SELECT FROM rota.shard s WHERE s.shard = a.shard AND s.epoch = a.epoch)
        LIMIT $limit FOR UPDATE SKIP LOCKED))
RETURNING job_uid;

-- name: set_aside_of
-- Why a job is set aside, by what of it is.
SELECT a.what, a.reason, a.since FROM rota.set_aside a
 WHERE a.shard = $shard AND a.job_uid = $job_uid
   AND EXISTS (SELECT FROM rota.shard s
                WHERE s.shard = a.shard AND s.epoch = a.epoch AND s.owner IS NOT NULL AND s.expires_at > $now)
 ORDER BY a.what;

-- name: all_set_aside
-- Jobs that have been set aside since an instant or longer, those first that have been for longest.
SELECT j.tenant_id, j.job_id, a.what, a.reason, a.since
  FROM rota.set_aside a
 CROSS JOIN LATERAL (SELECT * FROM rota.job x WHERE x.shard = a.shard AND x.job_uid = a.job_uid LIMIT 1) j
 WHERE a.since <= $since
   AND EXISTS (SELECT FROM rota.shard s
                WHERE s.shard = a.shard AND s.epoch = a.epoch AND s.owner IS NOT NULL AND s.expires_at > $now)
 ORDER BY a.since, a.shard, a.job_uid, a.what LIMIT $limit;
