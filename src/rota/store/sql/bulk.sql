-- name: matching_live
-- A tenant's runs that wait or run and that a filter means, with what an earlier question has not asked to stop already:
-- job by job, each by the keys of its own rows.
SELECT k.job_uid, k.scheduled_for
  FROM rota.job j
 CROSS JOIN LATERAL (
       SELECT p.shard, p.job_uid, p.scheduled_for FROM rota.pending p
        WHERE p.shard = j.shard AND p.job_uid = j.job_uid
          AND $state = ANY (ARRAY['', CASE p.gate WHEN 'upstream' THEN 'blocked' ELSE 'pending' END])
       UNION ALL
       SELECT l.shard, l.job_uid, l.scheduled_for FROM rota.lease l
        WHERE l.shard = j.shard AND l.job_uid = j.job_uid AND l.cancel_requested_at IS NULL
          AND $state = ANY (ARRAY['', 'running'])) k
 CROSS JOIN LATERAL (
       SELECT x.created_at FROM rota.run x
        WHERE x.shard = k.shard AND x.job_uid = k.job_uid AND x.scheduled_for = k.scheduled_for LIMIT 1) r
 WHERE j.tenant_id = $tenant_id AND j.deleted_at IS NULL
   AND ($job_id = '' OR j.job_id = $job_id) AND ($handler = '' OR j.handler = $handler)
   AND ($label = '' OR CASE WHEN $label_value::text IS NULL THEN j.labels ? $label
                            ELSE j.labels ->> $label = $label_value END)
   AND r.created_at >= $since AND r.created_at < $until
   AND (NOT $failed::boolean OR (
        SELECT true FROM rota.attempt a
         WHERE a.shard = k.shard AND a.job_uid = k.job_uid AND a.scheduled_for = k.scheduled_for
           AND a.outcome IN ('failed', 'timed_out', 'gave_up', 'lost') LIMIT 1))
   AND ($error = '' OR strpos(lower((
        SELECT a.error FROM rota.attempt a
         WHERE a.shard = k.shard AND a.job_uid = k.job_uid AND a.scheduled_for = k.scheduled_for
         ORDER BY a.ended_at DESC LIMIT 1)), lower($error)) > 0)
 LIMIT $limit;

-- name: cancel_runs
-- End those of these runs that wait, and ask for the end of those that run, with one entry in the audit log. One that is
-- claimed, put back or ended at this moment is passed over: the next look sees where it is.
WITH keys AS MATERIALIZED (
  SELECT * FROM unnest($shards::smallint[], $job_uids::bigint[], $slots::timestamptz[]) k (shard, job_uid, scheduled_for)),
gone AS (
  DELETE FROM rota.pending WHERE ctid = ANY (ARRAY (
    SELECT p.ctid FROM keys k
     CROSS JOIN LATERAL (
           SELECT x.ctid FROM rota.pending x
            WHERE x.shard = k.shard AND x.job_uid = k.job_uid AND x.scheduled_for = k.scheduled_for
            LIMIT 1 FOR UPDATE SKIP LOCKED) p))
  RETURNING shard, job_uid, scheduled_for, attempt),
finished AS (
  UPDATE rota.run r SET outcome = 'cancelled', finished_at = $now, attempt = g.attempt, reason = $reason
    FROM gone g
   CROSS JOIN LATERAL (
         SELECT x.tableoid, x.ctid FROM rota.run x
          WHERE x.shard = g.shard AND x.job_uid = g.job_uid AND x.scheduled_for = g.scheduled_for LIMIT 1) at
   WHERE r.scheduled_for = g.scheduled_for AND r.tableoid = at.tableoid AND r.ctid = at.ctid AND r.outcome IS NULL
  RETURNING r.scheduled_for),
asked AS (
  UPDATE rota.lease SET cancel_requested_at = $now WHERE ctid = ANY (ARRAY (
    SELECT l.ctid FROM keys k
     CROSS JOIN LATERAL (
           SELECT x.ctid FROM rota.lease x
            WHERE x.shard = k.shard AND x.job_uid = k.job_uid AND x.scheduled_for = k.scheduled_for
              AND x.cancel_requested_at IS NULL LIMIT 1 FOR NO KEY UPDATE SKIP LOCKED) l))
  RETURNING scheduled_for),
counted AS MATERIALIZED (
  SELECT (SELECT count(*) FROM finished) AS cancelled, (SELECT count(*) FROM asked) AS asked),
noted AS (
  INSERT INTO rota.audit (tenant_id, at, audit_id, actor, action, subject, after)
  SELECT $tenant_id, $now, $audit_id, $actor, 'runs.cancelled', $subject,
         $facts::jsonb || jsonb_build_object('cancelled', c.cancelled, 'asked', c.asked)
    FROM counted c WHERE c.cancelled + c.asked > 0)
SELECT cancelled, asked FROM counted;
