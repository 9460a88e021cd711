-- name: open_limits
-- Make the rows of limits that runs met for the first time, or whose permits grew: full buckets, free permits. A bucket
-- that was filled in the future, before the clock was set back, fills from now on.
-- Of many permits only some are made, and more when those are in use: each tenant may have a limit of 100,000.
WITH met AS (
  SELECT * FROM unnest($keys::text[], $permits::integer[], $bursts::integer[]) m (limit_key, permits, burst)),
filled AS (
  INSERT INTO rota.bucket AS b (limit_key, tokens, refilled_at)
  SELECT m.limit_key, m.burst, $now FROM met m WHERE m.burst IS NOT NULL
  ON CONFLICT (limit_key) DO UPDATE SET refilled_at = excluded.refilled_at
    WHERE b.refilled_at > excluded.refilled_at + interval '5 s')
INSERT INTO rota.permit (limit_key, slot, used_at)
SELECT m.limit_key, n, $now
  FROM met m
 CROSS JOIN LATERAL generate_series(1, least(coalesce(m.permits, 0), 128 + 2 * (
       SELECT count(*) FROM rota.permit x WHERE x.limit_key = m.limit_key))) n
ON CONFLICT (limit_key, slot) DO NOTHING
RETURNING limit_key;

-- name: look_at_parked
-- What is there at these limits, and who waits for it: a row for each limit and run that may be let in, tenants in turn
-- from the one behind $afters on, each with the best-ranked runs of its pools. Writes nothing: `domain.letting_in`
-- decides, and `open_parked` does it.
-- Only what live workers could take is looked at, where any live: the walk jumps from one live pool that has waiting
-- runs to the next, and in it from tenant to tenant, so neither dead pools nor anybody's backlog are read. $idles of
-- those that are there already (in what they cost) nobody takes: they hold up nobody. Whoever is saved for comes first.
-- Runs of frozen tenants start no more than those of dead pools: they stay where they are, and hold up nobody either.
WITH RECURSIVE live AS MATERIALIZED (
  SELECT DISTINCT pool, tenant_id FROM rota.worker WHERE expires_at > $now AND draining_at IS NULL),
frozen AS MATERIALIZED (
  SELECT f.tenant_id FROM rota.freeze f WHERE f.lifted_at IS NULL),
numbers AS MATERIALIZED (
  SELECT w.limit_key, w.after, w.idle, split_part(w.limit_key, '/', 1) AS kind,
         substring(w.limit_key FROM '[^/]*$') AS name, n.permits, n.rate, n.burst
    FROM unnest($keys::text[], $afters::text[], $idles::integer[]) w (limit_key, after, idle)
    LEFT JOIN LATERAL (SELECT * FROM rota.numbers_of(w.limit_key) LIMIT 1) n ON true),
saved AS MATERIALIZED (
  -- Whose turn it is, and where that run waits now; one that has gone, or whose pool is dead, is saved for no more.
  SELECT s.*, p.gate
    FROM numbers w
   CROSS JOIN LATERAL (SELECT * FROM rota.saving x WHERE x.limit_key = w.limit_key LIMIT 1) s
    LEFT JOIN LATERAL (
         SELECT x.gate FROM rota.pending x
          WHERE x.shard = s.shard AND x.job_uid = s.job_uid AND x.scheduled_for = s.scheduled_for
            AND x.pool = s.pool AND x.gate IN ('limit', 'open')
            AND NOT EXISTS (SELECT FROM frozen f WHERE f.tenant_id IN ('*', x.tenant_id))
            AND (NOT EXISTS (SELECT FROM live) OR EXISTS (
                 SELECT FROM live l WHERE l.pool = x.pool AND (l.tenant_id IS NULL OR l.tenant_id = x.tenant_id)))
          LIMIT 1) p ON true),
room AS MATERIALIZED (
  SELECT n.limit_key, n.after, n.permits, n.rate, n.burst, held.permits AS held, held.slow, b.tokens, there.cost::integer AS there,
         n.kind = 'downstream' AND least(n.permits, n.burst) > 1 AS has_costly,
         CASE WHEN n.permits IS NULL AND n.rate IS NULL THEN $limit::integer
              ELSE least(n.permits - held.permits, floor(b.tokens), $limit) - greatest(0, there.cost - n.idle)
              END::integer AS free
    FROM numbers n
   CROSS JOIN LATERAL (
         SELECT count(*) AS permits,
                count(*) FILTER (WHERE x.used_at IS NULL
                                    OR x.used_at <= (SELECT s.since FROM saved s WHERE s.limit_key = n.limit_key)) AS slow
           FROM rota.permit x WHERE n.permits IS NOT NULL AND x.limit_key = n.limit_key AND x.token IS NOT NULL) held
   CROSS JOIN LATERAL (
         SELECT coalesce(sum(j.cost), 0) AS cost
           FROM (SELECT * FROM rota.pending p
                  WHERE p.gate = 'open' AND p.limit_key = n.limit_key
                    AND NOT EXISTS (SELECT FROM frozen f WHERE f.tenant_id IN ('*', p.tenant_id))
                    AND (NOT EXISTS (SELECT FROM live) OR EXISTS (
                         SELECT FROM live l WHERE l.pool = p.pool AND (l.tenant_id IS NULL OR l.tenant_id = p.tenant_id)))
                  LIMIT $limit) x
          CROSS JOIN LATERAL (
                SELECT CASE n.kind WHEN 'downstream'
                                   THEN least(CASE WHEN y.limits ->> n.name ~ '^[1-9][0-9]{0,8}$' THEN (y.limits ->> n.name)::integer ELSE 0 END,
                                              nullif(n.permits, 0), n.burst)
                                   ELSE 1 END AS cost
                  FROM rota.job y WHERE y.shard = x.shard AND y.job_uid = x.job_uid LIMIT 1) j) there
    LEFT JOIN LATERAL (
         SELECT coalesce((
                  SELECT rota.tokens_at($now, n.burst, n.rate, x.tokens, x.refilled_at) FROM rota.bucket x
                   -- One that was filled in the future is for the claim to mend.
                   WHERE x.limit_key = n.limit_key AND x.refilled_at <= $now::timestamptz + interval '5 s'),
                  n.burst) AS tokens
          WHERE n.rate IS NOT NULL) b ON true),
pools (limit_key, after, pool, place) AS (
  SELECT r.limit_key, r.after, '', 0 FROM room r WHERE r.free > 0 OR r.has_costly
  UNION ALL
  SELECT s.limit_key, s.after, next.pool, s.place + 1
    FROM pools s
   CROSS JOIN LATERAL (
     (SELECT p.pool FROM rota.pending p
       WHERE p.gate = 'limit' AND p.limit_key = s.limit_key
         AND p.pool >= (SELECT min(l.pool) FROM live l WHERE l.pool > s.pool)
       ORDER BY p.pool LIMIT 1)
     UNION ALL
     (SELECT p.pool FROM rota.pending p
       WHERE NOT EXISTS (SELECT FROM live) AND p.gate = 'limit' AND p.limit_key = s.limit_key AND p.pool > s.pool
       ORDER BY p.pool LIMIT 1)
     LIMIT 1) next
   WHERE s.place < $pools),
walk (limit_key, after, pool, is_shared, tenant_id, lap, place) AS (
  -- lap 1: tenants behind the one whose turn was the last; 2: from the first on, up to that one. A pool whose workers
  -- take single tenants' runs has only those tenants in it.
  SELECT s.limit_key, s.after, s.pool,
         NOT EXISTS (SELECT FROM live) OR EXISTS (SELECT FROM live l WHERE l.pool = s.pool AND l.tenant_id IS NULL),
         s.after, 1, 0
    FROM pools s
   WHERE s.place > 0 AND (NOT EXISTS (SELECT FROM live) OR EXISTS (SELECT FROM live l WHERE l.pool = s.pool))
  UNION ALL
  SELECT w.limit_key, w.after, w.pool, w.is_shared, next.tenant_id, next.lap, w.place + 1
    FROM walk w
   CROSS JOIN LATERAL (
     (SELECT p.tenant_id, w.lap FROM (
             SELECT x.pool, x.tenant_id FROM rota.pending x
              WHERE w.is_shared AND x.gate = 'limit' AND x.limit_key = w.limit_key
                AND (x.pool, x.tenant_id) > (w.pool, w.tenant_id)
              ORDER BY x.pool, x.tenant_id LIMIT 1) p
       WHERE p.pool = w.pool AND (w.lap = 1 OR p.tenant_id <= w.after))
     UNION ALL
     (SELECT p.tenant_id, w.lap FROM (
             SELECT x.pool, x.tenant_id FROM rota.pending x
              WHERE NOT w.is_shared AND x.gate = 'limit' AND x.limit_key = w.limit_key
                AND (x.pool, x.tenant_id) >= (w.pool, (
                     SELECT min(l.tenant_id) FROM live l WHERE l.pool = w.pool AND l.tenant_id > w.tenant_id))
              ORDER BY x.pool, x.tenant_id LIMIT 1) p
       WHERE p.pool = w.pool AND (w.lap = 1 OR p.tenant_id <= w.after))
     UNION ALL
     (SELECT p.tenant_id, 2 FROM (
             SELECT x.pool, x.tenant_id FROM rota.pending x
              WHERE w.lap = 1 AND x.gate = 'limit' AND x.limit_key = w.limit_key
                AND (x.pool, x.tenant_id) >= (w.pool, CASE WHEN w.is_shared THEN '' ELSE (
                     SELECT min(l.tenant_id) FROM live l WHERE l.pool = w.pool) END)
              ORDER BY x.pool, x.tenant_id LIMIT 1) p
       WHERE p.pool = w.pool AND p.tenant_id <= w.after)
     LIMIT 1) next
   WHERE w.place < $turns),
met AS MATERIALIZED (
  SELECT m.limit_key, m.tenant_id, m.pool, min(m.lap) AS lap
    FROM (SELECT w.limit_key, w.tenant_id, w.pool, w.lap FROM walk w
           WHERE w.place > 0 AND NOT EXISTS (SELECT FROM frozen f WHERE f.tenant_id IN ('*', w.tenant_id))
             AND (w.is_shared OR EXISTS (
                 SELECT FROM live l WHERE l.pool = w.pool AND l.tenant_id = w.tenant_id))
          UNION ALL
          SELECT s.limit_key, s.tenant_id, s.pool, 0 FROM saved s WHERE s.gate = 'limit') m
   GROUP BY m.limit_key, m.tenant_id, m.pool),
pairs AS MATERIALIZED (
  SELECT m.limit_key, m.tenant_id, m.pool, m.place,
         greatest(1, ceil(r.free / m.pairs::numeric))::integer AS share
    FROM (SELECT m.*, row_number() OVER (PARTITION BY m.limit_key ORDER BY m.lap, m.tenant_id, m.pool) AS place,
                 count(*) OVER (PARTITION BY m.limit_key) AS pairs FROM met m) m
    FULL JOIN room r USING (limit_key)
   WHERE m.place IS NOT NULL),
waiting AS MATERIALIZED (
  SELECT t.limit_key, t.tenant_id, t.pool, t.place, t.share, p.shard, p.job_uid, p.scheduled_for, p.number,
         coalesce(c.cost, 0) AS cost
    FROM pairs t
   CROSS JOIN LATERAL (
         SELECT x.*, row_number() OVER (ORDER BY x.rank) AS number
           FROM (SELECT y.shard, y.job_uid, y.scheduled_for, y.rank FROM rota.pending y
                  WHERE y.gate = 'limit' AND y.limit_key = t.limit_key AND y.tenant_id = t.tenant_id AND y.pool = t.pool
                  ORDER BY y.rank LIMIT t.share) x) p
    LEFT JOIN LATERAL (
         SELECT x.*, coalesce(r.payload, x.payload) AS given
           FROM rota.job x
           LEFT JOIN rota.run r ON r.shard = p.shard AND r.job_uid = p.job_uid AND r.scheduled_for = p.scheduled_for
          WHERE x.shard = p.shard AND x.job_uid = p.job_uid LIMIT 1) j ON true
    LEFT JOIN LATERAL (
         -- One that is under this limit no more takes nothing of it.
         SELECT least(l.weight, nullif(l.permits, 0), l.burst) AS cost
           FROM rota.limits_on(j.tenant_id, j.job_uid, j.overlap, j.max_concurrency, j.concurrency_key,
                               j.key_concurrency, j.limits, j.given) l
          WHERE l.limit_key = t.limit_key LIMIT 1) c ON true),
cut AS MATERIALIZED (
  SELECT DISTINCT ON (w.limit_key) w.limit_key, w.tenant_id FROM walk w WHERE w.place = $turns
   ORDER BY w.limit_key, w.lap, w.tenant_id)
SELECT r.limit_key, r.permits, r.rate, r.burst, r.held, r.slow, r.tokens, r.there, r.free, c.tenant_id AS cut_at,
       s.shard AS saved_shard, s.job_uid AS saved_job_uid, s.scheduled_for AS saved_scheduled_for,
       s.tenant_id AS saved_tenant_id, s.pool AS saved_pool, s.cost AS saved_cost, s.saves, s.since, s.until,
       s.gate AS saved_gate,
       w.shard, w.job_uid, w.scheduled_for, w.tenant_id, w.pool, w.number, w.share, w.cost
  FROM room r FULL JOIN saved s USING (limit_key) FULL JOIN cut c USING (limit_key) FULL JOIN waiting w USING (limit_key)
 ORDER BY r.limit_key, w.number, w.place;

-- name: open_parked
-- Let these runs into the queue that wait for these limits; whether they start is decided by the claim. One that
-- somebody else has let in, or has locked just now, is passed over.
WITH opened AS (
  UPDATE rota.pending SET gate = 'open'
   WHERE ctid = ANY (ARRAY (
         SELECT held.ctid
           FROM unnest($shards::smallint[], $job_uids::bigint[], $slots::timestamptz[], $keys::text[])
                k (shard, job_uid, scheduled_for, limit_key)
          CROSS JOIN LATERAL (
                SELECT p.ctid FROM rota.pending p
                 WHERE p.shard = k.shard AND p.job_uid = k.job_uid AND p.scheduled_for = k.scheduled_for
                   AND p.gate = 'limit' AND p.limit_key = k.limit_key
                 LIMIT 1 FOR UPDATE SKIP LOCKED) held))
  RETURNING limit_key, pool)
SELECT limit_key, array_agg(DISTINCT pool) AS pools, count(*) AS runs FROM opened GROUP BY limit_key;

-- name: save_for
-- Write down for whom these limits save, or that it is passed by for a while. Not where somebody has decided it anew
-- since $befores: NULL is for a limit that saved for nobody.
INSERT INTO rota.saving AS s (limit_key, shard, job_uid, scheduled_for, tenant_id, pool, cost, saves, since, until)
SELECT n.limit_key, n.shard, n.job_uid, n.scheduled_for, n.tenant_id, n.pool, n.cost, n.saves, $now, n.until
  FROM unnest($keys::text[], $shards::smallint[], $job_uids::bigint[], $slots::timestamptz[], $tenant_ids::text[],
              $pools::text[], $costs::integer[], $saves::boolean[], $untils::timestamptz[])
       n (limit_key, shard, job_uid, scheduled_for, tenant_id, pool, cost, saves, until)
 ORDER BY n.limit_key
ON CONFLICT (limit_key) DO UPDATE
   SET shard = excluded.shard, job_uid = excluded.job_uid, scheduled_for = excluded.scheduled_for,
       tenant_id = excluded.tenant_id, pool = excluded.pool, cost = excluded.cost, saves = excluded.saves,
       since = excluded.since, until = excluded.until
 WHERE s.since = ($befores::timestamptz[])[array_position($keys::text[], s.limit_key)]
RETURNING limit_key;

-- name: save_no_more
-- Forget for whom these limits saved, unless somebody has decided that anew since $sinces.
DELETE FROM rota.saving WHERE ctid = ANY (ARRAY (
       SELECT held.ctid FROM unnest($keys::text[], $sinces::timestamptz[]) k (limit_key, since)
        CROSS JOIN LATERAL (
              SELECT s.ctid FROM rota.saving s WHERE s.limit_key = k.limit_key AND s.since = k.since
               LIMIT 1 FOR UPDATE SKIP LOCKED) held))
RETURNING limit_key;

-- name: release_parked
-- Let a batch of a tenant's runs go that wait for a limit which they are under no longer.
UPDATE rota.pending SET gate = 'open'
 WHERE ctid = ANY (ARRAY (
       SELECT p.ctid FROM rota.pending p
        WHERE p.gate = 'limit' AND p.limit_key = $limit_key AND p.tenant_id = $tenant_id
        LIMIT $limit FOR UPDATE SKIP LOCKED))
RETURNING pool;

-- name: parked_keys
-- The limits for which runs wait, or which save for one, in the order of their keys, after one: a jump from key to key.
WITH RECURSIVE met (limit_key, place) AS (
  SELECT $after::text, 0
  UNION ALL
  SELECT next.limit_key, m.place + 1
    FROM met m
   CROSS JOIN LATERAL (
         SELECT p.limit_key FROM rota.pending p WHERE p.gate = 'limit' AND p.limit_key > m.limit_key
          ORDER BY p.limit_key LIMIT 1) next
   WHERE m.place < $limit)
SELECT limit_key FROM met WHERE place > 0
UNION
(SELECT limit_key FROM rota.saving WHERE limit_key > $after ORDER BY limit_key LIMIT $limit)
 ORDER BY limit_key LIMIT $limit;
