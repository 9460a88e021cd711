-- A run whose end could not be written shows the reason that its lease has, beside the payload that it ran with.
CREATE OR REPLACE VIEW rota.job_run AS
SELECT rota.run_id(r.job_uid, r.scheduled_for) AS run_id,
       j.tenant_id, j.job_id, r.scheduled_for, r.shard, r.job_uid,
       coalesce(r.outcome, CASE WHEN l.token IS NOT NULL THEN 'running'
                                WHEN p.gate = 'upstream' THEN 'blocked' ELSE 'pending' END) AS state,
       p.gate, r.origin, coalesce(l.attempt, p.attempt, r.attempt, 0) AS attempt, j.max_attempts,
       j.handler, coalesce(p.pool, j.pool) AS pool,
       coalesce(l.priority, p.priority, j.priority) AS priority,
       r.created_at, p.available_at, p.deadline_at, p.limit_key, coalesce(l.losses, p.losses) AS losses,
       l.claimed_at AS started_at, l.worker_id, l.expires_at AS lease_expires_at,
       l.cancel_requested_at, l.progress, l.progress_note,
       r.finished_at, coalesce(r.reason, l.set_apart) AS reason,
       -- That of its last attempt; of a run that waits, what it is to run with.
       coalesce(r.payload,
         CASE WHEN j.payload_since = 1 OR r.outcome IS NULL AND l.token IS NULL THEN j.payload
              ELSE (SELECT CASE WHEN ran.version < j.payload_since THEN (
                             SELECT f.payload FROM rota.former_payload f
                              WHERE f.shard = r.shard AND f.job_uid = r.job_uid AND f.since <= ran.version
                              ORDER BY f.since DESC LIMIT 1) ELSE j.payload END
                      FROM (SELECT coalesce(l.job_version, (
                              SELECT a.job_version FROM rota.attempt a
                               WHERE a.shard = r.shard AND a.job_uid = r.job_uid AND a.scheduled_for = r.scheduled_for
                               ORDER BY a.ended_at DESC LIMIT 1)) AS version) ran) END) AS payload, r.result
  FROM rota.run r
  LEFT JOIN rota.job j ON j.shard = r.shard AND j.job_uid = r.job_uid
  LEFT JOIN rota.pending p ON p.shard = r.shard AND p.job_uid = r.job_uid AND p.scheduled_for = r.scheduled_for
  LEFT JOIN rota.lease l ON l.shard = r.shard AND l.job_uid = r.job_uid AND l.scheduled_for = r.scheduled_for;
