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
INSERT INTO rota.permit (limit_key, slot)
SELECT m.limit_key, n
  FROM met m
 CROSS JOIN LATERAL generate_series(1, least(coalesce(m.permits, 0), 128 + 2 * (
       SELECT count(*) FROM rota.permit x WHERE x.limit_key = m.limit_key))) n
ON CONFLICT (limit_key, slot) DO NOTHING
RETURNING limit_key;

-- name: return_parked
-- Let runs that wait for these limits into the queue again, as many as each has room for beside those that are there
-- already; whether they start is decided by the claim. Tenants take turns from the one behind $afters on, each with the
-- best-ranked runs of its pools; where some pools have live workers, those without do not hold them up, and neither do
-- $idles of those that are there, whom nobody takes. A limit that is no more lets all go.
WITH RECURSIVE live AS MATERIALIZED (
  SELECT DISTINCT pool, tenant_id FROM rota.worker WHERE expires_at > $now AND draining_at IS NULL),
wanted AS MATERIALIZED (
  SELECT w.limit_key, w.after, w.idle, p.shard, p.job_uid, p.scheduled_for
    FROM unnest($keys::text[], $afters::text[], $idles::integer[]) w (limit_key, after, idle)
   CROSS JOIN LATERAL (
         SELECT x.* FROM rota.pending x
          WHERE x.gate = 'limit' AND x.limit_key = w.limit_key ORDER BY x.tenant_id, x.pool, x.rank LIMIT 1) p),
numbers AS MATERIALIZED (
  SELECT n.*, CASE WHEN n.weight IS NULL THEN 1 ELSE least(n.weight, nullif(n.permits, 0), n.burst) END AS cost FROM (
  SELECT w.limit_key, w.after, w.idle, l.weight,
         -- What is shared is read from the limit itself: the first who waits may not be under it any more.
         CASE WHEN w.limit_key ~ '^(downstream|tenant)/' THEN x.permits ELSE l.permits END AS permits, x.rate, x.burst
    FROM wanted w
    LEFT JOIN LATERAL (
         SELECT x.permits, x.rate, x.burst FROM rota.limits x
          WHERE x.name = substring(w.limit_key FROM '[^/]+$')
            AND (w.limit_key = format('downstream/%s/%s', x.tenant_id, x.name) AND x.kind = 'downstream'
                 OR w.limit_key LIKE 'tenant/%' AND x.kind = 'tenant'
                    AND (x.tenant_id = '*' OR w.limit_key = format('tenant/%s/%s', x.tenant_id, x.name)))
          ORDER BY x.tenant_id = '*' LIMIT 1) x ON true
    LEFT JOIN LATERAL (
         SELECT x.*, coalesce(r.payload, x.payload) AS given
           FROM rota.job x
           LEFT JOIN rota.run r ON r.shard = w.shard AND r.job_uid = w.job_uid AND r.scheduled_for = w.scheduled_for
          WHERE x.shard = w.shard AND x.job_uid = w.job_uid LIMIT 1) j ON true
    LEFT JOIN LATERAL rota.limits_on(
         j.tenant_id, j.job_uid, j.overlap, j.max_concurrency, j.concurrency_key, j.key_concurrency, j.limits,
         j.given) l
         ON l.limit_key = w.limit_key) n),
room AS MATERIALIZED (
  SELECT n.limit_key, n.after, n.rate, n.cost, b.tokens, there.runs AS there, whole.room > 0 AS has_room,
         whole.room - greatest(0, there.runs - n.idle) AS free
    FROM numbers n
   CROSS JOIN LATERAL (
         SELECT count(*) AS permits FROM rota.permit x
          WHERE n.permits IS NOT NULL AND x.limit_key = n.limit_key AND x.token IS NOT NULL) held
   CROSS JOIN LATERAL (
         SELECT count(*) AS runs FROM rota.pending x
          WHERE x.gate = 'open' AND x.limit_key = n.limit_key
            AND (NOT EXISTS (SELECT FROM live) OR EXISTS (
                 SELECT FROM live l WHERE l.pool = x.pool AND (l.tenant_id IS NULL OR l.tenant_id = x.tenant_id)))) there
    LEFT JOIN LATERAL (
         SELECT coalesce((
                  SELECT rota.tokens_at($now, n.burst, n.rate, x.tokens, x.refilled_at) FROM rota.bucket x
                   -- One that was filled in the future is for the claim to mend.
                   WHERE x.limit_key = n.limit_key AND x.refilled_at <= $now::timestamptz + interval '5 s'),
                  n.burst) AS tokens
          WHERE n.rate IS NOT NULL) b ON true
   CROSS JOIN LATERAL (
         SELECT floor(least(n.permits - held.permits, floor(b.tokens), $limit::integer) / n.cost)::integer AS room) whole),
turn (limit_key, after, free, tenant_id, pool, place, lap) AS (
  SELECT r.limit_key, r.after, r.free, r.after, '', 0, 1 FROM room r WHERE r.free > 0
  UNION ALL
  SELECT t.limit_key, t.after, t.free, next.tenant_id, next.pool, t.place + 1, next.lap
    FROM turn t
   CROSS JOIN LATERAL (
     (SELECT p.tenant_id, p.pool, 1 AS lap FROM rota.pending p
       WHERE t.place = 0 AND p.gate = 'limit' AND p.limit_key = t.limit_key AND p.tenant_id > t.after
       ORDER BY p.tenant_id, p.pool LIMIT 1)
     UNION ALL
     (SELECT p.tenant_id, p.pool, t.lap FROM rota.pending p
       WHERE t.place > 0 AND p.gate = 'limit' AND p.limit_key = t.limit_key
         AND (p.tenant_id, p.pool) > (t.tenant_id, t.pool) AND (t.lap = 1 OR p.tenant_id <= t.after)
       ORDER BY p.tenant_id, p.pool LIMIT 1)
     UNION ALL
     (SELECT p.tenant_id, p.pool, 2 FROM rota.pending p
       WHERE t.lap = 1 AND p.gate = 'limit' AND p.limit_key = t.limit_key AND p.tenant_id <= t.after
       ORDER BY p.tenant_id, p.pool LIMIT 1)
     LIMIT 1) next
   WHERE t.place < $turns),
chosen AS MATERIALIZED (
  SELECT t.limit_key, t.free, t.place, t.tenant_id, p.at, p.number
    FROM (SELECT t.*, ceil(t.free / count(*) OVER (PARTITION BY t.limit_key)::numeric)::integer AS share
            FROM turn t
           WHERE t.place > 0 AND (NOT EXISTS (SELECT FROM live) OR EXISTS (
                 SELECT FROM live l WHERE l.pool = t.pool AND (l.tenant_id IS NULL OR l.tenant_id = t.tenant_id)))) t
   CROSS JOIN LATERAL (
         SELECT l.at, row_number() OVER (ORDER BY l.rank) AS number
           FROM (SELECT x.ctid AS at, x.rank FROM rota.pending x
                  WHERE x.gate = 'limit' AND x.limit_key = t.limit_key AND x.tenant_id = t.tenant_id AND x.pool = t.pool
                  ORDER BY x.rank LIMIT t.share FOR UPDATE SKIP LOCKED) l) p),
listed AS MATERIALIZED (
  SELECT c.*, row_number() OVER (PARTITION BY c.limit_key ORDER BY c.number, c.place) AS turn FROM chosen c),
returned AS (
  UPDATE rota.pending SET gate = 'open'
   WHERE ctid = ANY (ARRAY (SELECT l.at FROM listed l WHERE l.turn <= l.free))
  RETURNING limit_key, pool),
counted AS (
  SELECT limit_key, array_agg(DISTINCT pool) AS pools, count(*) AS runs FROM returned GROUP BY limit_key)
SELECT r.limit_key, c.pools, coalesce(c.runs, 0) AS runs, r.there + coalesce(c.runs, 0) AS there, r.has_room,
       (SELECT l.tenant_id FROM listed l WHERE l.limit_key = r.limit_key AND l.turn <= l.free
         ORDER BY l.turn DESC LIMIT 1) AS last_tenant_id,
       -- When there is a token for one more; never where it is something else that those who wait lack
       CASE WHEN r.tokens < r.cost * (r.there + coalesce(c.runs, 0) + 1) THEN
         $now::timestamptz + (r.cost * (r.there + coalesce(c.runs, 0) + 1) - r.tokens) / r.rate * interval '1 s' END
       AS next_token_at
  FROM room r LEFT JOIN counted c USING (limit_key);

-- name: release_parked
-- Let a batch of a tenant's runs go that wait for a limit which they are under no longer.
UPDATE rota.pending SET gate = 'open'
 WHERE ctid = ANY (ARRAY (
       SELECT p.ctid FROM rota.pending p
        WHERE p.gate = 'limit' AND p.limit_key = $limit_key AND p.tenant_id = $tenant_id
        LIMIT $limit FOR UPDATE SKIP LOCKED))
RETURNING pool;

-- name: parked_keys
-- The limits for which runs wait, in the order of their keys, after one: a jump from key to key.
WITH RECURSIVE met (limit_key, place) AS (
  SELECT $after::text, 0
  UNION ALL
  SELECT next.limit_key, m.place + 1
    FROM met m
   CROSS JOIN LATERAL (
         SELECT p.limit_key FROM rota.pending p WHERE p.gate = 'limit' AND p.limit_key > m.limit_key
          ORDER BY p.limit_key LIMIT 1) next
   WHERE m.place < $limit)
SELECT limit_key FROM met WHERE place > 0 ORDER BY place;
