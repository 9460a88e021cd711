-- name: unplaced_runs
-- Unfinished runs that have no place, or two: the conservation law says there are none.
SELECT rota.run_id(r.job_uid, r.scheduled_for) AS run_id,
       (p.shard IS NOT NULL)::int + (l.shard IS NOT NULL)::int AS places
  FROM rota.run r
  LEFT JOIN rota.pending p ON p.shard = r.shard AND p.job_uid = r.job_uid AND p.scheduled_for = r.scheduled_for
  LEFT JOIN rota.lease l ON l.shard = r.shard AND l.job_uid = r.job_uid AND l.scheduled_for = r.scheduled_for
 WHERE r.outcome IS NULL AND (p.shard IS NOT NULL) = (l.shard IS NOT NULL)
 LIMIT $limit;

-- name: misplaced_rows
-- Queue, lease and dead-letter rows whose run is not in the state that they stand for.
SELECT place, rota.run_id(m.job_uid, m.scheduled_for) AS run_id FROM (
  SELECT 'pending' AS place, shard, job_uid, scheduled_for FROM rota.pending
  UNION ALL SELECT 'lease', shard, job_uid, scheduled_for FROM rota.lease
  UNION ALL SELECT 'dead', shard, job_uid, scheduled_for FROM rota.dead) m
  LEFT JOIN rota.run r ON r.shard = m.shard AND r.job_uid = m.job_uid AND r.scheduled_for = m.scheduled_for
 WHERE r.shard IS NULL OR r.outcome IS DISTINCT FROM CASE m.place WHEN 'dead' THEN 'dead' END
 LIMIT $limit;

-- name: dead_without_letter
SELECT rota.run_id(r.job_uid, r.scheduled_for) AS run_id FROM rota.run r
 WHERE r.outcome = 'dead'
   AND NOT EXISTS (SELECT FROM rota.dead d WHERE d.shard = r.shard AND d.job_uid = r.job_uid AND d.scheduled_for = r.scheduled_for)
 LIMIT $limit;

-- name: stray_permits
-- Permits that no lease holds though they are not free, and those that a lease counts as its own and are not.
SELECT limit_key, slot, 'belongs to no lease' AS trouble FROM rota.permit p
 WHERE p.token IS NOT NULL AND NOT EXISTS (SELECT FROM rota.lease l WHERE l.token = p.token)
UNION ALL
SELECT held.limit_key, held.slot, 'is not that of the lease which counts on it'
  FROM rota.lease l CROSS JOIN LATERAL unnest(l.permit_keys, l.permit_slots) held (limit_key, slot)
 WHERE NOT EXISTS (SELECT FROM rota.permit p
                    WHERE p.limit_key = held.limit_key AND p.slot = held.slot AND p.token = l.token)
 LIMIT $limit;

-- name: schedules_to_audit
-- Live schedules with the window in which every slot must be a run or in the slot ledger.
SELECT s.shard, s.job_uid, j.tenant_id, j.job_id, j.schedule, s.since, s.next_slot, s.next_run_at
  FROM rota.schedule s JOIN rota.job j ON j.shard = s.shard AND j.job_uid = s.job_uid
 WHERE j.deleted_at IS NULL AND j.quarantined IS NULL AND j.schedule IS NOT NULL
   AND (s.shard, s.job_uid) > ($after_shard::smallint, $after_uid::bigint)
 ORDER BY s.shard, s.job_uid LIMIT $limit;

-- name: unaccounted_slots
-- Of these slots, the ones that are neither a run nor in the slot ledger.
SELECT k.shard, k.job_uid, k.slot
  FROM unnest($shards::smallint[], $job_uids::bigint[], $slots::timestamptz[]) k (shard, job_uid, slot)
 WHERE NOT EXISTS (SELECT FROM rota.run r WHERE r.shard = k.shard AND r.job_uid = k.job_uid AND r.scheduled_for = k.slot)
   AND NOT EXISTS (SELECT FROM rota.skipped z WHERE z.shard = k.shard AND z.job_uid = k.job_uid
                      AND z.first_slot <= k.slot AND z.last_slot >= k.slot);

-- name: overdue
-- How far behind the schedulers are: the oldest slot that nobody has looked at, and how many are due.
SELECT count(*) AS due, min(next_run_at) AS oldest FROM rota.schedule WHERE next_run_at <= $now;

-- name: quarantined_jobs
SELECT tenant_id, job_id, quarantined FROM rota.job WHERE quarantined IS NOT NULL AND deleted_at IS NULL
 ORDER BY tenant_id, job_id LIMIT $limit;

-- name: damaged_jobs
-- Jobs whose limits, labels, retries or payload are none that the program would have written: somebody's SQL did.
SELECT tenant_id, job_id,
       array_to_string(ARRAY[
         CASE WHEN jsonb_typeof(limits) <> 'object' OR jsonb_path_exists(limits,
                'strict $.* ? (@.type() != "number" || @ < 1 || @ > 1000 || @ != @.floor())', '{}', true) THEN 'limits' END,
         CASE WHEN jsonb_typeof(labels) <> 'object'
                OR jsonb_path_exists(labels, 'strict $.* ? (@.type() != "string")', '{}', true) THEN 'labels' END,
         CASE WHEN jsonb_typeof(retry) <> 'object' OR jsonb_path_exists(retry,
                'strict $.* ? (@.type() != "number" || @ < 0 || @ > 2592000)', '{}', true) THEN 'retry' END,
         CASE WHEN jsonb_typeof(payload) <> 'object' OR rota.has_long_number(payload) THEN 'payload' END], ', ') AS fields
  FROM rota.job
 WHERE deleted_at IS NULL AND (
       limits <> '{}' AND (jsonb_typeof(limits) <> 'object' OR jsonb_path_exists(limits,
         'strict $.* ? (@.type() != "number" || @ < 1 || @ > 1000 || @ != @.floor())', '{}', true))
    OR labels <> '{}' AND (jsonb_typeof(labels) <> 'object'
         OR jsonb_path_exists(labels, 'strict $.* ? (@.type() != "string")', '{}', true))
    OR jsonb_typeof(retry) <> 'object' OR jsonb_path_exists(retry,
         'strict $.* ? (@.type() != "number" || @ < 0 || @ > 2592000)', '{}', true)
    OR payload <> '{}' AND (jsonb_typeof(payload) <> 'object' OR rota.has_long_number(payload)))
 ORDER BY tenant_id, job_id LIMIT $limit;

-- name: set_apart_runs
-- Runs whose end could not be decided or written as it was told: buried with that reason, or leased until the next try.
SELECT rota.run_id(a.job_uid, a.scheduled_for) AS run_id, j.job_id, a.reason
  FROM (SELECT l.shard, l.job_uid, l.scheduled_for, l.set_apart AS reason FROM rota.lease l WHERE l.set_apart IS NOT NULL
        UNION ALL
        SELECT d.shard, d.job_uid, d.scheduled_for, r.reason
          FROM rota.dead d
          JOIN rota.run r ON r.shard = d.shard AND r.job_uid = d.job_uid AND r.scheduled_for = d.scheduled_for
         WHERE r.reason LIKE 'set apart: %') a
  LEFT JOIN rota.job j ON j.shard = a.shard AND j.job_uid = a.job_uid
 LIMIT $limit;

-- name: waiting_by_gate
SELECT pool, gate, handler, count(*) AS runs, min(available_at) AS oldest FROM rota.pending
 GROUP BY pool, gate, handler ORDER BY pool, gate, count(*) DESC LIMIT $limit;

-- name: unserved_pools
-- Runs whose time has come in pools that no live worker serves for their tenant. Those of the gate `handler` are told already.
SELECT pool, count(*) AS runs FROM rota.pending p
 WHERE available_at <= $now AND gate <> 'handler'
   AND NOT EXISTS (SELECT FROM rota.worker w WHERE w.pool = p.pool AND w.expires_at > $now AND w.draining_at IS NULL
                      AND (w.tenant_id IS NULL OR w.tenant_id = p.tenant_id))
 GROUP BY pool ORDER BY count(*) DESC, pool LIMIT $limit;

-- name: fleet
-- How many own, live, hold and lag, in one row.
SELECT (SELECT count(*) FROM rota.shard WHERE owner IS NOT NULL AND expires_at > $now) AS owned_shards,
       (SELECT count(*) FROM rota.shard) AS shards,
       (SELECT count(*) FROM rota.lease) AS leases,
       (SELECT count(*) FROM rota.lease WHERE expires_at <= $now) AS lapsed_leases,
       (SELECT array_agg(DISTINCT v) FROM (SELECT tzdata AS v FROM rota.scheduler WHERE expires_at > $now
                                           UNION SELECT tzdata FROM rota.worker WHERE expires_at > $now) t) AS tzdata,
       (SELECT count(*) FROM rota.scheduler WHERE expires_at > $now) AS schedulers,
       (SELECT count(*) FROM rota.worker WHERE expires_at > $now) AS workers;

-- name: server
SELECT current_setting('server_version') AS version, pg_is_in_recovery() AS standby,
       current_setting('transaction_read_only')::boolean AS read_only,
       (SELECT count(*) FROM pg_stat_replication) AS replicas;

-- name: table_health
-- Live and dead rows of the hot tables, and the age of the oldest transaction that keeps dead ones alive.
SELECT relname AS table, n_live_tup AS live, n_dead_tup AS dead,
       (SELECT max(age(backend_xmin)) FROM pg_stat_activity WHERE backend_xmin IS NOT NULL) AS oldest_snapshot_age
  FROM pg_stat_user_tables WHERE schemaname = 'rota' AND relname IN ('schedule', 'pending', 'lease', 'shard')
 ORDER BY relname;
