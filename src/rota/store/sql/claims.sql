-- fragment: turns
-- The queue of a claim: open runs of a pool, of tenants that take turns, each locked, in the order of the turns, and with
-- what its job says of it.
turn (tenant_id, place, lap, low_water) AS (
  -- lap 0: the tenant that is owed; 1: those behind it; 2: from the first on; 3: it again, and the round is over.
  SELECT $after::text, 0, CASE WHEN $owed::integer > 0 THEN 0 ELSE 1 END, $low_water::bigint
  UNION ALL
  SELECT next.tenant_id, t.place + 1, next.lap, next.low_water
    FROM turn t
   CROSS JOIN LATERAL (
     (SELECT p.tenant_id, 1 AS lap, $low_water AS low_water FROM rota.pending p
       WHERE t.lap = 0 AND p.pool = $pool AND p.gate = 'open' AND p.tenant_id = $after AND p.rank >= $low_water
       ORDER BY p.rank LIMIT 1)
     UNION ALL
     (SELECT p.tenant_id, 1, -9223372036854775808 FROM rota.pending p
       WHERE t.lap <= 1 AND NOT $alone AND p.pool = $pool AND p.gate = 'open' AND p.tenant_id > t.tenant_id
       ORDER BY p.tenant_id LIMIT 1)
     UNION ALL
     (SELECT p.tenant_id, 2, -9223372036854775808 FROM rota.pending p
       WHERE t.lap <= 1 AND NOT $alone AND p.pool = $pool AND p.gate = 'open' AND p.tenant_id < $after
       ORDER BY p.tenant_id LIMIT 1)
     UNION ALL
     (SELECT p.tenant_id, 2, -9223372036854775808 FROM rota.pending p
       WHERE t.lap = 2 AND p.pool = $pool AND p.gate = 'open' AND p.tenant_id > t.tenant_id AND p.tenant_id < $after
       ORDER BY p.tenant_id LIMIT 1)
     UNION ALL
     (SELECT p.tenant_id, 3, $low_water FROM rota.pending p
       WHERE t.lap IN (1, 2) AND $owed = 0 AND p.pool = $pool AND p.gate = 'open' AND p.tenant_id = $after
         AND p.rank >= $low_water
       ORDER BY p.rank LIMIT 1)
     LIMIT 1) next
   -- Tenants that are frozen are passed by, and take no turn from others.
   WHERE t.place < $turns + (SELECT count(*) FROM rota.freeze) AND t.lap < 3),
shared AS MATERIALIZED (
  SELECT s.*, least($scan::integer,
                    greatest(CASE WHEN s.tenant_id = $after AND $owed > 0 THEN $owed ELSE s.weight END,
                             ceil($scan * s.weight::numeric / sum(s.weight) OVER ())))::integer AS share
    FROM (SELECT t.tenant_id, t.place, t.low_water, coalesce(w.weight, 1) AS weight
            FROM turn t
            LEFT JOIN LATERAL (SELECT x.weight FROM rota.tenant x WHERE x.tenant_id = t.tenant_id LIMIT 1) w ON true
           WHERE t.place > 0
             AND NOT EXISTS (SELECT FROM rota.freeze f WHERE f.tenant_id IN ('*', t.tenant_id) AND f.lifted_at IS NULL)) s),
first AS MATERIALIZED (
  SELECT s.place, s.weight, s.share, p.* FROM shared s
   CROSS JOIN LATERAL (
         SELECT x.ctid AS at, x.shard, x.job_uid, x.scheduled_for, x.attempt, x.losses, x.priority, x.rank, x.handler,
                x.tenant_id, x.available_at, x.has_payload
           FROM rota.pending x
          WHERE x.pool = $pool AND x.gate = 'open' AND x.tenant_id = s.tenant_id AND x.rank >= s.low_water
            AND (x.handler = ANY ($handlers::text[]) OR $any_handler AND x.handler NOT IN ('shell', 'http'))
            AND (x.deadline_at IS NULL OR x.deadline_at > $now)
          ORDER BY x.rank LIMIT s.share FOR UPDATE SKIP LOCKED) p),
-- What the others left is shared by those that gave all of theirs and may have more.
hungry AS MATERIALIZED (
  SELECT s.tenant_id, s.place, s.low_water, s.weight, s.share,
         ceil(($scan - (SELECT count(*) FROM first)) * s.weight::numeric / sum(s.weight) OVER ())::integer AS more
    FROM shared s
   WHERE $scan > (SELECT count(*) FROM first)
     AND s.share <= (SELECT count(*) FROM first f WHERE f.place = s.place)),
picked AS MATERIALIZED (
  SELECT * FROM first
  UNION ALL
  SELECT h.place, h.weight, h.share, p.* FROM hungry h
   CROSS JOIN LATERAL (
         SELECT x.ctid AS at, x.shard, x.job_uid, x.scheduled_for, x.attempt, x.losses, x.priority, x.rank, x.handler,
                x.tenant_id, x.available_at, x.has_payload
           FROM rota.pending x
          WHERE x.pool = $pool AND x.gate = 'open' AND x.tenant_id = h.tenant_id AND x.rank >= h.low_water
            AND (x.handler = ANY ($handlers::text[]) OR $any_handler AND x.handler NOT IN ('shell', 'http'))
            AND (x.deadline_at IS NULL OR x.deadline_at > $now)
            AND x.ctid <> ALL (ARRAY (SELECT f.at FROM first f WHERE f.place = h.place))
          ORDER BY x.rank LIMIT h.more FOR UPDATE SKIP LOCKED) p),
there AS MATERIALIZED (
  -- A row that somebody changed between our snapshot and its lock is a new version, which the writes below could not
  -- see: its run would be leased and wait. It is as good as locked by another.
  SELECT v.ctid AS at FROM rota.pending v WHERE v.ctid = ANY (ARRAY (SELECT p.at FROM picked p))),
queue AS MATERIALIZED (
  -- In the order of the turns: each tenant's next `weight` runs, then again. Shares are rounded up, and there are no more
  -- tokens than $scan.
  SELECT p.*, row_number() OVER (ORDER BY (p.number - 1) / p.weight, p.place, p.number) AS turn
    FROM (SELECT p.*, row_number() OVER (PARTITION BY p.place ORDER BY p.rank, p.scheduled_for, p.job_uid)
                   + CASE WHEN p.tenant_id = $after AND $owed > 0 THEN p.weight - $owed ELSE 0 END AS number
            FROM picked p WHERE NOT p.at NOT IN (SELECT v.at FROM there v)) p
   ORDER BY turn LIMIT $scan),
facts AS MATERIALIZED (
  SELECT q.at, q.turn, q.number, q.weight, q.shard, q.job_uid, q.scheduled_for, q.rank, q.priority, q.losses,
         q.tenant_id AS queued_by, q.available_at,
         -- Whoever opened its gate may have read the clock after us: nothing starts before it is available. One that is far
         -- ahead was computed before the clock was set back.
         CASE WHEN q.available_at <= $now::timestamptz + interval '5 s' THEN greatest($now, q.available_at)
              ELSE $now END AS claimed_at,
         -- What waits as "http" is called by its URL.
         CASE WHEN q.handler = 'http' THEN coalesce(j.handler, q.handler) ELSE q.handler END AS handler,
         -- A counter at its column's maximum must not make the whole batch fail.
         least(q.attempt, 2147483646) + 1 AS attempt,
         coalesce(j.lease_ms, 60000) AS lease_ms, coalesce(j.timeout_ms, 3600000) AS timeout_ms,
         coalesce(j.max_attempts, 1) AS max_attempts, j.tenant_id, j.job_id, coalesce(r.payload, j.payload) AS payload,
         j.overlap, j.max_concurrency,
         j.concurrency_key, j.key_concurrency, j.limits, j.version AS job_version
    FROM queue q
    LEFT JOIN LATERAL (SELECT * FROM rota.job x WHERE x.shard = q.shard AND x.job_uid = q.job_uid LIMIT 1) j ON true
    LEFT JOIN LATERAL (
         SELECT x.payload FROM rota.run x
          WHERE q.has_payload AND x.shard = q.shard AND x.job_uid = q.job_uid AND x.scheduled_for = q.scheduled_for
          LIMIT 1) r ON true),

-- name: claim_runs
-- Take open runs of a pool whose handlers the worker knows, and lease each under its own token: tenants take turns, each
-- with its runs in the order of their ranks. Runs that are under a limit are left to `claim_limited`: the last row tells
-- whether there were any in front.
-- The turn begins after tenant $after, or with it while it is $owed runs, and goes round by one index: it jumps from
-- tenant to tenant, so that nobody's backlog is read. Where few have runs each gives its share of the batch at once.
-- Picked by ctid, since statistics of a table that is empty one moment and deep the next make any join plan flip.
-- With a $claim_id the tokens are noted under it, and a second claim of that id fails as a whole.
WITH RECURSIVE
-- use: turns
met AS MATERIALIZED (
  SELECT f.*, f.overlap <> 'allow' OR f.max_concurrency > 0 OR f.concurrency_key <> '' OR f.limits <> '{}' OR EXISTS (
           SELECT FROM rota.limits l WHERE l.kind = 'tenant' AND l.tenant_id IN (f.queued_by, '*')) AS is_limited
    FROM facts f),
granted AS MATERIALIZED (
  SELECT m.*, ($tokens::uuid[])[m.turn] AS token FROM met m
   WHERE m.is_limited IS NOT TRUE ORDER BY m.turn LIMIT $limit),
taken AS (
  DELETE FROM rota.pending WHERE ctid = ANY (ARRAY (SELECT g.at FROM granted g))),
leased AS (
  INSERT INTO rota.lease (shard, job_uid, scheduled_for, token, claimed_at, expires_at, lease_ms, attempt, worker_id,
                          priority, losses, available_at, job_version)
  SELECT g.shard, g.job_uid, g.scheduled_for, g.token, g.claimed_at,
         $now::timestamptz + g.lease_ms * interval '1 ms', g.lease_ms, g.attempt, $worker_id, g.priority, g.losses,
         g.available_at, g.job_version
    FROM granted g),
noted AS (
  INSERT INTO rota.claim (tenant_id, worker_id, claim_id, tokens, claimed_at)
  SELECT $claim_tenant_id, $worker_id, $claim_id, array_agg(g.token), $now FROM granted g
   WHERE $claim_id::uuid IS NOT NULL HAVING count(*) > 0)
SELECT g.turn, g.queued_by, g.weight, g.number, g.shard, g.job_uid, g.scheduled_for, g.token, g.attempt,
       g.max_attempts, g.rank, g.handler, g.lease_ms, g.timeout_ms, g.tenant_id, g.job_id, g.payload, g.losses,
       g.claimed_at, g.available_at, NULL::boolean AS has_more, NULL::boolean AS has_limited
  FROM granted g
UNION ALL
-- Besides the runs, where the round ended, after how many tenants, and whether there may be more where it was.
SELECT NULL, t.tenant_id, NULL, t.place, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
       NULL, NULL, NULL, t.place = $turns + (SELECT count(*) FROM rota.freeze) AND NOT $alone AND NOT EXISTS (
         SELECT FROM rota.freeze f WHERE f.tenant_id = '*' AND f.lifted_at IS NULL) OR EXISTS (
         SELECT FROM hungry h WHERE (SELECT count(*) FROM picked p WHERE p.place = h.place) >= h.share + h.more),
       coalesce((SELECT bool_or(m.is_limited) FROM met m), false)
  FROM turn t WHERE t.place = (SELECT max(x.place) FROM turn x)
 ORDER BY 1;

-- name: claim_limited
-- Take open runs as `claim_runs` does, also those that are under limits: no run starts past one of them.
-- Rows, permits and buckets are locked before anything is decided: permits by SKIP LOCKED, so that a free one that
-- somebody else takes just then is not waited for; buckets one after the other in the order of their keys.
-- With a $claim_id the tokens are noted under it, and a second claim of that id fails as a whole.
WITH RECURSIVE
-- use: turns
-- Which limits they are under, and what is left of those. FULL JOIN stands for joins of sets that have the same keys:
-- it is never planned as a nested loop.
asked AS MATERIALIZED (
  SELECT f.turn, f.at, f.queued_by, f.rank, l.limit_key, l.permits, l.rate, l.burst,
         least(l.weight, nullif(l.permits, 0), l.burst) AS cost
    FROM facts f
   CROSS JOIN LATERAL rota.limits_on(
         f.queued_by, f.job_uid, f.overlap, f.max_concurrency, f.concurrency_key, f.key_concurrency, f.limits,
         f.payload) l),
-- No run passes by those of its tenant that wait for the limit already.
needs AS MATERIALIZED (
  SELECT a.turn, a.at, a.queued_by, a.limit_key, a.permits, a.rate, a.burst, a.cost,
         coalesce(a.rank > first.rank, false) AS is_behind
    FROM asked a
    FULL JOIN (SELECT d.limit_key, d.queued_by, w.rank
                 FROM (SELECT DISTINCT x.limit_key, x.queued_by FROM asked x) d
                 LEFT JOIN LATERAL (
                      SELECT p.rank FROM rota.pending p
                       WHERE p.gate = 'limit' AND p.limit_key = d.limit_key AND p.tenant_id = d.queued_by
                         AND p.pool = $pool ORDER BY p.rank LIMIT 1) w ON true) first USING (limit_key, queued_by)),
-- What a limit saves for a run that takes much of it is left for that one's tenant in its pool.
savings AS MATERIALIZED (
  SELECT s.limit_key, s.cost, CASE WHEN s.pool = $pool THEN s.tenant_id END AS tenant_id FROM rota.saving s
   WHERE s.limit_key = ANY (ARRAY (SELECT DISTINCT n.limit_key FROM needs n)) AND s.saves AND s.until > $now),
keys AS MATERIALIZED (
  SELECT n.limit_key, max(n.permits) AS permits, max(n.rate) AS rate, max(n.burst) AS burst,
         sum(n.cost)::integer AS wanted, coalesce(max(s.cost), 0) AS saved, max(s.tenant_id) AS saved_for
    FROM needs n FULL JOIN savings s USING (limit_key) GROUP BY n.limit_key),
buckets AS MATERIALIZED (
  SELECT b.limit_key, b.ctid AS at, b.tokens, b.refilled_at FROM rota.bucket b
   WHERE b.limit_key = ANY (ARRAY (SELECT k.limit_key FROM keys k WHERE k.rate IS NOT NULL))
   ORDER BY b.limit_key FOR UPDATE),
reach AS MATERIALIZED (
  -- Up to which slot permits are taken: up to the cap. Where it was lowered and somebody holds what lies above, only so
  -- far that the cap holds although every one up to there were taken: others look at the same moment.
  SELECT k.limit_key, k.wanted + k.saved AS wanted,
         CASE WHEN EXISTS (SELECT FROM rota.permit o
                            WHERE o.limit_key = k.limit_key AND o.slot > k.permits AND o.token IS NOT NULL)
              THEN (SELECT coalesce(max(s.slot), 0)
                      FROM (SELECT o.slot, count(o.token) OVER (
                                     ORDER BY o.slot DESC ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS beyond
                              FROM rota.permit o WHERE o.limit_key = k.limit_key) s
                     WHERE s.slot + s.beyond <= k.permits)
              ELSE k.permits END AS slot
    FROM keys k WHERE k.permits > 0),
locked AS MATERIALIZED (
  SELECT r.limit_key, p.slot, p.at
    FROM reach r
   CROSS JOIN LATERAL (
         SELECT x.slot, x.ctid AS at FROM rota.permit x
          WHERE x.limit_key = r.limit_key AND x.slot <= r.slot AND x.token IS NULL
          LIMIT r.wanted FOR UPDATE SKIP LOCKED) p),
slots AS MATERIALIZED (
  SELECT l.*, row_number() OVER (PARTITION BY l.limit_key) AS number
    FROM locked l
   WHERE NOT l.at NOT IN (SELECT v.ctid FROM rota.permit v WHERE v.ctid = ANY (ARRAY (SELECT x.at FROM locked x)))),
room AS MATERIALIZED (
  SELECT k.limit_key, k.permits, k.rate, k.burst, k.saved, k.saved_for, b.at, b.tokens, b.refilled_at,
         least(CASE WHEN k.permits IS NOT NULL THEN coalesce(s.free, 0) END, floor(b.tokens)) AS free,
         -- Nor is a bucket of use that was filled in the future: the clock was set back, and it would give nothing till then.
         k.rate IS NOT NULL AND (b.at IS NULL OR b.refilled_at > $now::timestamptz + interval '5 s') AS has_no_bucket,
         coalesce(s.free, 0) < k.wanted + k.saved AND coalesce(k.permits, 0) > (
           SELECT count(*) FROM rota.permit x WHERE x.limit_key = k.limit_key AND x.slot <= k.permits) AS has_few_rows
    FROM keys k
    FULL JOIN (SELECT limit_key, count(*) AS free FROM slots GROUP BY limit_key) s USING (limit_key)
    FULL JOIN (SELECT b.limit_key, b.at, b.refilled_at,
                      rota.tokens_at($now, k.burst, k.rate, b.tokens, b.refilled_at) AS tokens
                 FROM buckets b FULL JOIN keys k USING (limit_key) WHERE k.rate IS NOT NULL AND b.at IS NOT NULL) b
          USING (limit_key)),
fits AS MATERIALIZED (
  -- What cannot run by itself takes nothing from those behind it.
  SELECT o.*, NOT (o.is_behind OR o.is_new OR o.cost > o.free)
         AND sum(CASE WHEN o.is_behind OR o.cost > o.free THEN 0 ELSE o.cost END)
               OVER (PARTITION BY o.limit_key, o.is_saved_for ORDER BY o.turn) <= o.free AS ok
    FROM (SELECT n.turn, n.at, n.limit_key, n.permits, n.rate, n.cost, n.is_behind,
                 r.has_no_bucket OR r.has_few_rows AS is_new, n.queued_by IS NOT DISTINCT FROM r.saved_for AS is_saved_for,
                 CASE WHEN r.saved = 0 THEN r.free
                      WHEN n.queued_by = r.saved_for THEN least(r.saved, r.free)
                      ELSE r.free - r.saved END AS free
            FROM needs n FULL JOIN room r USING (limit_key)) o),
refused AS MATERIALIZED (
  SELECT turn, at, min(limit_key) FILTER (WHERE NOT is_new) AS limit_key, bool_or(is_new) AS is_new
    FROM fits WHERE NOT ok GROUP BY turn, at),
granted AS MATERIALIZED (
  SELECT f.*, ($tokens::uuid[])[f.turn] AS token FROM facts f
   WHERE f.turn NOT IN (SELECT r.turn FROM refused r) ORDER BY f.turn LIMIT $limit),
charged AS MATERIALIZED (
  SELECT * FROM fits n
   WHERE n.turn NOT IN (SELECT r.turn FROM refused r) AND n.turn <= (SELECT max(g.turn) FROM granted g)),
held AS MATERIALIZED (
  SELECT u.turn, limit_key, s.slot, s.at
    FROM (SELECT c.turn, c.limit_key, row_number() OVER (PARTITION BY c.limit_key ORDER BY c.turn) AS number
            FROM charged c CROSS JOIN LATERAL unnest(array_fill(0, ARRAY[c.cost])) WHERE c.permits IS NOT NULL) u
    FULL JOIN slots s USING (limit_key, number)
   WHERE u.turn IS NOT NULL),
spent AS MATERIALIZED (
  SELECT limit_key, sum(cost) AS cost, sum(cost) FILTER (WHERE rate IS NOT NULL) AS tokens FROM charged GROUP BY limit_key),
-- And what is written
taken AS (
  DELETE FROM rota.pending WHERE ctid = ANY (ARRAY (SELECT g.at FROM granted g)) RETURNING 1),
parked AS (
  UPDATE rota.pending p SET gate = 'limit', limit_key = (SELECT r.limit_key FROM refused r WHERE r.at = p.ctid)
   WHERE p.ctid = ANY (ARRAY (SELECT r.at FROM refused r WHERE NOT r.is_new))),
paid AS (
  -- The bucket is there: this writes to its last version, whoever made that while we waited for its lock. An UPDATE would
  -- look for the one of our snapshot.
  INSERT INTO rota.bucket AS b (limit_key, tokens, refilled_at)
  SELECT limit_key, r.tokens - s.tokens, $now FROM spent s FULL JOIN room r USING (limit_key) WHERE s.tokens > 0
  ON CONFLICT (limit_key) DO UPDATE
     SET tokens = excluded.tokens, refilled_at = greatest(b.refilled_at, excluded.refilled_at)),
given AS (
  UPDATE rota.permit p
     SET token = ($tokens::uuid[])[(ARRAY (SELECT h.turn FROM held h))[
                                    array_position(ARRAY (SELECT h.at FROM held h), p.ctid)]],
         used_at = $now
   WHERE p.ctid = ANY (ARRAY (SELECT h.at FROM held h))),
leased AS (
  INSERT INTO rota.lease (shard, job_uid, scheduled_for, token, claimed_at, expires_at, lease_ms, attempt, worker_id,
                          priority, losses, permit_keys, permit_slots, available_at, job_version)
  SELECT g.shard, g.job_uid, g.scheduled_for, g.token, g.claimed_at,
         $now::timestamptz + g.lease_ms * interval '1 ms', g.lease_ms, g.attempt, $worker_id, g.priority, g.losses,
         h.limit_keys, h.slots, g.available_at, g.job_version
    FROM granted g
    FULL JOIN (SELECT h.turn, array_agg(h.limit_key) AS limit_keys, array_agg(h.slot) AS slots
                 FROM held h GROUP BY h.turn) h USING (turn)),
noted AS (
  INSERT INTO rota.claim (tenant_id, worker_id, claim_id, tokens, claimed_at)
  SELECT $claim_tenant_id, $worker_id, $claim_id, array_agg(g.token), $now FROM granted g
   WHERE $claim_id::uuid IS NOT NULL HAVING count(*) > 0)
SELECT g.turn, g.queued_by, g.weight, g.number, g.shard, g.job_uid, g.scheduled_for, g.token, g.attempt,
       g.max_attempts, g.rank, g.handler, g.lease_ms, g.timeout_ms, g.tenant_id, g.job_id, g.payload, g.losses,
       NULL::boolean AS has_more, NULL::text AS limit_key, NULL::boolean AS is_new, NULL::boolean AS is_stuck,
       NULL::integer AS permits, NULL::integer AS burst, NULL::timestamptz AS next_token_at, g.claimed_at,
       g.available_at
  FROM granted g
UNION ALL
-- Besides the runs, where the round ended, after how many tenants, and whether there may be more where it was;
SELECT NULL, t.tenant_id, NULL, t.place, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
       NULL, t.place = $turns + (SELECT count(*) FROM rota.freeze) AND NOT $alone AND NOT EXISTS (
         SELECT FROM rota.freeze f WHERE f.tenant_id = '*' AND f.lifted_at IS NULL) OR EXISTS (
         SELECT FROM hungry h WHERE (SELECT count(*) FROM picked p WHERE p.place = h.place) >= h.share + h.more),
       NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL
  FROM turn t WHERE t.place = (SELECT max(x.place) FROM turn x)
UNION ALL
-- and a row for each limit that refused some: is it a new one, whose rows are to be made; can others that wait for it
-- go; and when is its next token?
SELECT NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
       NULL, f.limit_key, bool_or(f.is_new),
       -- What was counted for runs that another limit refused is free still.
       bool_or(f.free >= f.cost AND (
         f.is_behind OR f.free - coalesce(s.cost, 0) >= f.cost AND (SELECT count(*) FROM granted) < $limit)),
       max(r.permits), max(r.burst),
       max(CASE WHEN r.tokens - coalesce(s.tokens, 0) < f.cost THEN
             $now::timestamptz + (f.cost - r.tokens + coalesce(s.tokens, 0)) / r.rate * interval '1 s' END),
       NULL, NULL
  FROM fits f FULL JOIN room r USING (limit_key) FULL JOIN spent s USING (limit_key)
 WHERE NOT f.ok GROUP BY f.limit_key
 ORDER BY 1;

-- name: tokens_of_claim
-- Under which tokens a claim took its runs.
SELECT tokens FROM rota.claim
 WHERE tenant_id = $claim_tenant_id AND worker_id = $worker_id AND claim_id = $claim_id;

-- name: forget_claims
-- Remove what nobody will ask for again, at most $limit rows, oldest first.
DELETE FROM rota.claim WHERE ctid = ANY (ARRAY (
       SELECT ctid FROM rota.claim WHERE claimed_at <= $before ORDER BY claimed_at LIMIT $limit FOR UPDATE SKIP LOCKED))
RETURNING claim_id;

-- name: claimed_under
-- Read back a claim in doubt, or one that is repeated, by its tokens. No index serves it; it is for the rare bad day.
SELECT l.shard, l.job_uid, l.scheduled_for, l.token, l.attempt, l.losses, l.lease_ms, l.claimed_at, l.expires_at,
       l.available_at,
       coalesce(j.max_attempts, 1) AS max_attempts, j.handler, coalesce(j.timeout_ms, 3600000) AS timeout_ms,
       j.tenant_id, j.job_id,
       coalesce(r.payload, CASE WHEN l.job_version < j.payload_since THEN (
         SELECT f.payload FROM rota.former_payload f
          WHERE f.shard = l.shard AND f.job_uid = l.job_uid AND f.since <= l.job_version
          ORDER BY f.since DESC LIMIT 1) ELSE j.payload END) AS payload
  FROM rota.lease l
  LEFT JOIN rota.job j ON j.shard = l.shard AND j.job_uid = l.job_uid
  LEFT JOIN rota.run r ON r.shard = l.shard AND r.job_uid = l.job_uid AND r.scheduled_for = l.scheduled_for
 WHERE l.token = ANY ($tokens::uuid[]) AND l.worker_id = $worker_id;

-- name: jobs_of_tenant
-- Which of these jobs are a tenant's, deleted ones too: whoever ends a run must be its tenant's worker.
SELECT j.job_uid FROM unnest($shards::smallint[], $job_uids::bigint[]) k (shard, job_uid)
 CROSS JOIN LATERAL (
       SELECT x.job_uid FROM rota.job x
        WHERE x.shard = k.shard AND x.job_uid = k.job_uid AND x.tenant_id = $tenant_id LIMIT 1) j;

-- name: renew_leases
-- Extend each lease that is still there under its token, also a lapsed one that nobody reclaimed: the token is the
-- proof, the expiry only says from when on a reaper may take it; it is set apart no longer. The answer says whose run
-- somebody wants to end.
-- One that somebody has locked, perhaps a handler's own long transaction that completes its run, is passed over: waiting
-- for it would cost all the others of the batch their renewal.
UPDATE rota.lease SET expires_at = $now::timestamptz + lease_ms * interval '1 ms', set_apart = NULL
       -- renew_with_progress: , progress = coalesce(($values::real[])[array_position($tokens::uuid[], token)], progress)
       -- renew_with_progress: , progress_note = coalesce(
       -- renew_with_progress:     ($notes::text[])[array_position($tokens::uuid[], token)], progress_note)
 WHERE ctid = ANY (ARRAY (
       SELECT held.ctid
         FROM unnest($shards::smallint[], $job_uids::bigint[], $slots::timestamptz[], $tokens::uuid[])
              h (shard, job_uid, scheduled_for, token)
        CROSS JOIN LATERAL (
              SELECT l.ctid FROM rota.lease l
               WHERE l.shard = h.shard AND l.job_uid = h.job_uid AND l.scheduled_for = h.scheduled_for
                 AND l.token = h.token LIMIT 1 FOR NO KEY UPDATE SKIP LOCKED) held))
RETURNING token, expires_at, cancel_requested_at IS NOT NULL AS cancel;

-- name: renew_with_progress
-- like: renew_leases
-- Extend leases and note how far their runs are, in one version of each row; what is not said stays as it was.

-- name: held_leases
-- Which of these leases are there as yet, whoever has them locked.
SELECT l.token, l.expires_at, l.cancel_requested_at IS NOT NULL AS cancel
  FROM unnest($shards::smallint[], $job_uids::bigint[], $slots::timestamptz[], $tokens::uuid[])
       h (shard, job_uid, scheduled_for, token)
 CROSS JOIN LATERAL (
       SELECT * FROM rota.lease x
        WHERE x.shard = h.shard AND x.job_uid = h.job_uid AND x.scheduled_for = h.scheduled_for AND x.token = h.token
        LIMIT 1) l;

-- name: note_progress
-- Note how far a run is; what is not said stays as it was. Nobody waits for a lease that another transaction has locked.
UPDATE rota.lease SET progress = coalesce($progress::real, progress), progress_note = coalesce($note, progress_note)
 WHERE ctid = ANY (ARRAY (
       SELECT l.ctid FROM rota.lease l
        WHERE l.shard = $shard AND l.job_uid = $job_uid AND l.scheduled_for = $scheduled_for AND l.token = $token
          FOR NO KEY UPDATE SKIP LOCKED))
RETURNING token;

-- name: leases_with_jobs
-- What a decision on the end of these attempts needs to know.
SELECT l.shard, l.job_uid, l.scheduled_for, l.token, l.attempt, l.losses,
       coalesce(l.available_at, l.claimed_at) AS available_at,
       j.max_attempts, j.max_losses, j.retry, j.pool, (j.job_uid IS NULL OR j.deleted_at IS NOT NULL) AS orphaned
  FROM unnest($shards::smallint[], $job_uids::bigint[], $slots::timestamptz[], $tokens::uuid[])
       h (shard, job_uid, scheduled_for, token)
 CROSS JOIN LATERAL (
       SELECT * FROM rota.lease x
        WHERE x.shard = h.shard AND x.job_uid = h.job_uid AND x.scheduled_for = h.scheduled_for AND x.token = h.token
        LIMIT 1) l
  LEFT JOIN rota.job j ON j.shard = l.shard AND j.job_uid = l.job_uid;

-- name: expired_leases
-- Leases of these shards that lapsed, with what their decision needs. A range of the primary key per shard: an index
-- on expires_at would cost every renewal its HOT update. One that somebody has locked is being renewed or ended just
-- then, perhaps by a handler's own long transaction: it is passed over, since waiting for it would hold up the others.
-- Jobs in $aside are left out: they take nobody's place.
SELECT l.shard, l.job_uid, l.scheduled_for, l.token, l.attempt, l.losses,
       coalesce(l.available_at, l.claimed_at) AS available_at,
       j.max_attempts, j.max_losses, j.retry, j.pool, (j.job_uid IS NULL OR j.deleted_at IS NOT NULL) AS orphaned
  FROM unnest($shards::smallint[]) sh
 CROSS JOIN LATERAL (
       SELECT * FROM rota.lease x
        WHERE x.shard = sh AND x.expires_at <= $now AND $resumed_at::timestamptz + x.lease_ms * interval '1 ms' <= $now
          AND x.job_uid <> ALL ($aside::bigint[])
        LIMIT $limit FOR UPDATE SKIP LOCKED) l
  LEFT JOIN rota.job j ON j.shard = l.shard AND j.job_uid = l.job_uid
 LIMIT $limit;

-- name: hold_lease
-- Leave a lapsed lease alone for a while whose end cannot be written, so that it does not come first in every batch.
UPDATE rota.lease SET set_apart = $reason, expires_at = $until
 WHERE ctid = ANY (ARRAY (
       SELECT l.ctid FROM rota.lease l
        WHERE l.shard = $shard AND l.job_uid = $job_uid AND l.scheduled_for = $scheduled_for AND l.token = $token
          AND l.expires_at <= $now FOR NO KEY UPDATE SKIP LOCKED))
RETURNING token;

-- name: settle_attempts
-- End attempts, whichever way: the one statement by which a lease goes. Per token: record the attempt, then finish
-- the run, let it wait again, or bury it. A token that is not in the answer was not ours, or moved, or is locked.
-- A run that somebody wants cancelled neither waits again nor is buried, whatever was told: it is cancelled. So is one
-- that is to wait again and whose job is deleted by then.
-- Nothing here waits for a transaction that is none of ours, such as a handler's own that completes its run: a lease that
-- somebody has locked is passed over, and so is one whose run is to wait again while its job is being edited or deleted,
-- since the edit's own sweep over the waiting runs could not see this one.
-- LIMIT 1, here and below: it keeps a look-up by key from being planned as a join over the whole table, which happens
-- when statistics were taken of a table, or of next month's partition of `run`, while it was empty (19,000 -> 1,000/s).
WITH told AS MATERIALIZED (
  SELECT * FROM unnest($shards::smallint[], $job_uids::bigint[], $slots::timestamptz[], $tokens::uuid[],
                       $outcomes::text[], $errors::text[], $states::text[], $charged::integer[], $losses::integer[],
                       $available_ats::timestamptz[], $gates::text[], $reasons::text[], $results::jsonb[])
         t (shard, job_uid, scheduled_for, token, outcome, error, state, charged, losses, available_at, gate, reason,
            result)),
home AS MATERIALIZED (
  SELECT t.token, j.pool, j.handler, j.tenant_id, j.deleted_at IS NOT NULL AS is_gone FROM told t
   CROSS JOIN LATERAL (
         SELECT x.pool, x.handler, x.tenant_id, x.deleted_at FROM rota.job x
          WHERE x.shard = t.shard AND x.job_uid = t.job_uid LIMIT 1 FOR SHARE SKIP LOCKED) j
   WHERE t.state = 'pending'),
ended AS (
  DELETE FROM rota.lease WHERE ctid = ANY (ARRAY (
    SELECT held.ctid FROM told
     CROSS JOIN LATERAL (
           SELECT l.ctid FROM rota.lease l
            WHERE l.shard = told.shard AND l.job_uid = told.job_uid AND l.scheduled_for = told.scheduled_for
              AND l.token = told.token LIMIT 1 FOR UPDATE SKIP LOCKED) held
     WHERE told.state <> 'pending' OR NOT told.token NOT IN (SELECT h.token FROM home h)))
     -- reap_attempts: AND expires_at <= $expired_by
  RETURNING shard, job_uid, scheduled_for, token, claimed_at, attempt, worker_id, cancel_requested_at, priority,
            permit_keys, permit_slots, job_version, progress, progress_note),
freed AS (
  -- The permits go with the lease, in its own statement: nothing else can leave one behind.
  UPDATE rota.permit SET token = NULL WHERE ctid = ANY (ARRAY (
    SELECT own.ctid FROM ended e
     CROSS JOIN LATERAL unnest(e.permit_keys, e.permit_slots) held (limit_key, slot)
     CROSS JOIN LATERAL (
           SELECT p.ctid FROM rota.permit p
            WHERE p.limit_key = held.limit_key AND p.slot = held.slot AND p.token = e.token LIMIT 1) own))),
settled AS MATERIALIZED (
  SELECT e.shard, e.job_uid, e.scheduled_for, e.token, e.claimed_at, e.attempt, e.worker_id, e.cancel_requested_at,
         CASE WHEN e.cancel_requested_at IS NOT NULL AND t.state IN ('pending', 'dead') THEN 'cancelled'
              WHEN t.state = 'pending' AND e.token IN (SELECT h.token FROM home h WHERE h.is_gone) THEN 'cancelled'
              ELSE t.state END AS state,
         t.outcome, t.error, t.charged, t.losses, t.available_at, t.gate, t.reason, t.result, e.priority, e.permit_keys,
         e.job_version, e.progress, e.progress_note
    FROM ended e JOIN told t ON t.token = e.token),
recorded AS (
  INSERT INTO rota.attempt (shard, job_uid, scheduled_for, token, claimed_at, ended_at, attempt, outcome, worker_id,
                            error, job_version, progress, progress_note)
  SELECT shard, job_uid, scheduled_for, token, claimed_at, greatest($now, claimed_at), attempt, outcome, worker_id,
         error, job_version, progress, progress_note
    FROM settled),
finished AS (
  UPDATE rota.run r SET outcome = s.state, finished_at = greatest($now, s.claimed_at), attempt = s.attempt,
         result = s.result,
         reason = CASE WHEN s.state <> 'cancelled' THEN s.reason
                       WHEN s.cancel_requested_at IS NOT NULL THEN 'cancelled on request'
                       WHEN s.outcome = 'cancelled' THEN 'cancelled by its worker'
                       ELSE 'job deleted' END
    FROM settled s
   CROSS JOIN LATERAL (
         SELECT x.tableoid, x.ctid FROM rota.run x
          WHERE x.shard = s.shard AND x.job_uid = s.job_uid AND x.scheduled_for = s.scheduled_for LIMIT 1) at
   WHERE s.state <> 'pending' AND r.scheduled_for = s.scheduled_for AND r.tableoid = at.tableoid AND r.ctid = at.ctid),
waiting AS (
  INSERT INTO rota.pending (shard, job_uid, scheduled_for, rank, available_at, attempt, losses, gate, pool, handler,
                            tenant_id, priority)
  SELECT s.shard, s.job_uid, s.scheduled_for, rota.rank_of(s.available_at, s.priority, h.pool), s.available_at, s.charged,
         s.losses, s.gate, h.pool, rota.handler_key(h.handler), h.tenant_id, s.priority
    FROM settled s JOIN home h ON h.token = s.token WHERE s.state = 'pending'),
buried AS (
  INSERT INTO rota.dead (shard, job_uid, scheduled_for, tenant_id, died_at)
  SELECT s.shard, s.job_uid, s.scheduled_for, coalesce(j.tenant_id, ''), $now
    FROM settled s LEFT JOIN rota.job j ON j.shard = s.shard AND j.job_uid = s.job_uid
   WHERE s.state = 'dead')
SELECT s.token, s.state, w.keys AS awaited, w.tenant_id
  FROM settled s
  LEFT JOIN LATERAL (
       -- Which of the limits that are freer now somebody waits for, and whose turn it was
       SELECT array_agg(k.limit_key) AS keys,
              (SELECT j.tenant_id FROM rota.job j WHERE j.shard = s.shard AND j.job_uid = s.job_uid) AS tenant_id
         FROM unnest(s.permit_keys) k (limit_key)
        -- Not EXISTS, which is planned as a hash of all runs that wait.
        CROSS JOIN LATERAL (
              SELECT FROM rota.pending p WHERE p.gate = 'limit' AND p.limit_key = k.limit_key LIMIT 1) waits) w
       ON s.permit_keys IS NOT NULL;

-- name: reap_attempts
-- like: settle_attempts
-- End attempts whose leases lapsed by $expired_by. That condition stands on the DELETE itself, where it is checked again
-- on a row that was renewed meanwhile.

-- name: recorded_outcomes
-- How these attempts ended, if they did, and where their runs stand now: tells a report that is repeated from one that
-- comes too late.
SELECT a.token, a.outcome, v.state
  FROM unnest($shards::smallint[], $job_uids::bigint[], $slots::timestamptz[], $tokens::uuid[])
       h (shard, job_uid, scheduled_for, token)
 CROSS JOIN LATERAL (
       SELECT x.token, x.outcome FROM rota.attempt x
        WHERE x.shard = h.shard AND x.job_uid = h.job_uid AND x.scheduled_for = h.scheduled_for AND x.token = h.token
        LIMIT 1) a
 CROSS JOIN LATERAL (
       SELECT x.state FROM rota.job_run x
        WHERE x.shard = h.shard AND x.job_uid = h.job_uid AND x.scheduled_for = h.scheduled_for LIMIT 1) v;
