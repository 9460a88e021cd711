-- name: lock_limit
-- A limit as it stands, locked until the transaction ends.
SELECT * FROM rota.limits WHERE tenant_id = $tenant_id AND name = $name FOR NO KEY UPDATE;

-- name: count_limits
-- How many limits a tenant has, at most $most.
SELECT count(*) AS limits FROM (SELECT FROM rota.limits WHERE tenant_id = $tenant_id LIMIT $most) l;

-- name: add_limit
-- No row: somebody else has just made one of this name.
INSERT INTO rota.limits (tenant_id, name, kind, rate, burst, permits, version, created_at, updated_at)
VALUES ($tenant_id, $name, $kind, $rate, $burst, $permits, 1, $now, $now)
ON CONFLICT (tenant_id, name) DO NOTHING
RETURNING version;

-- name: change_limit
UPDATE rota.limits SET rate = $rate, burst = $burst, permits = $permits, version = version + 1, updated_at = $now
 WHERE tenant_id = $tenant_id AND name = $name AND version = $version
RETURNING version;

-- name: delete_limit
DELETE FROM rota.limits WHERE tenant_id = $tenant_id AND name = $name AND version = $version RETURNING version;

-- name: list_limits
-- The limits that a tenant's runs may be under, or those of one name: its own, and the operator's that none of its own
-- takes the place of. With each: permits in use, tokens left, and how many of its runs wait there ($most at most); a
-- bucket that nobody has taken from is full. Asked for the operator, runs of all tenants are meant.
SELECT l.*,
       CASE WHEN l.permits IS NOT NULL THEN
         (SELECT count(*) FROM rota.permit p WHERE p.limit_key = l.limit_key AND p.token IS NOT NULL) END AS in_use,
       CASE WHEN $tenant_id = '*' THEN
         (SELECT count(*) FROM (
                 SELECT FROM rota.pending p WHERE p.gate = 'limit' AND p.limit_key = l.limit_key LIMIT $most) w)
       ELSE
         (SELECT count(*) FROM (
                 SELECT FROM rota.pending p
                  WHERE p.gate = 'limit' AND p.limit_key = l.limit_key AND p.tenant_id = $tenant_id LIMIT $most) w)
       END AS waiting,
       CASE WHEN l.rate IS NOT NULL THEN
         coalesce((SELECT rota.tokens_at($now, l.burst, l.rate, b.tokens, b.refilled_at)
                     FROM rota.bucket b WHERE b.limit_key = l.limit_key), l.burst) END AS tokens
  FROM (
       SELECT x.*, CASE x.kind WHEN 'downstream' THEN format('downstream/%s/%s', x.tenant_id, x.name)
                               ELSE format('tenant/%s/%s', $tenant_id::text, x.name) END AS limit_key
         FROM rota.limits x
        WHERE x.tenant_id IN ($tenant_id, '*') AND ($name::text IS NULL OR x.name = $name)
          AND (x.tenant_id = $tenant_id OR NOT EXISTS (
               SELECT FROM rota.limits own
                WHERE own.tenant_id = $tenant_id AND own.name = x.name AND own.kind = x.kind))) l
 ORDER BY l.name, l.tenant_id = '*';

-- name: instances_of_limit
-- What a limit that each tenant has one of amounts to over all tenants: no index leads by the end of a key, so at most
-- $most rows of each table are looked at. Tenants with a limit of their own of this name have nothing of this one.
WITH owners AS (
  SELECT tenant_id FROM rota.limits WHERE kind = 'tenant' AND name = $name AND tenant_id <> '*'
), wanted (suffix) AS (
  VALUES ('/' || $name::text)
)
SELECT (SELECT count(*) FROM (SELECT limit_key FROM rota.permit WHERE token IS NOT NULL LIMIT $most) p, wanted w
         WHERE starts_with(p.limit_key, 'tenant/') AND right(p.limit_key, length(w.suffix)) = w.suffix
           AND substr(p.limit_key, 8, length(p.limit_key) - 7 - length(w.suffix)) NOT IN (TABLE owners)) AS in_use,
       (SELECT count(*) FROM (SELECT limit_key, tenant_id FROM rota.pending WHERE gate = 'limit' LIMIT $most) p, wanted w
         WHERE starts_with(p.limit_key, 'tenant/') AND right(p.limit_key, length(w.suffix)) = w.suffix
           AND p.tenant_id NOT IN (TABLE owners)) AS waiting,
       (SELECT sum(rota.tokens_at($now, $burst, $rate, b.tokens, b.refilled_at))
          FROM (SELECT limit_key, tokens, refilled_at FROM rota.bucket LIMIT $most) b, wanted w
         WHERE starts_with(b.limit_key, 'tenant/') AND right(b.limit_key, length(w.suffix)) = w.suffix
           AND substr(b.limit_key, 8, length(b.limit_key) - 7 - length(w.suffix)) NOT IN (TABLE owners)) AS tokens;

-- name: forget_permits
-- Delete a batch of the free permits above a slot: of a limit that was lowered, or (above 0) is gone. Those in use are
-- somebody's, and a row that a claim holds at this moment may become so.
DELETE FROM rota.permit p
 WHERE p.token IS NULL AND p.ctid = ANY (ARRAY (
       SELECT f.ctid FROM rota.permit f
        WHERE f.token IS NULL AND f.slot > $above
          AND f.limit_key = $limit_key -- not: forget_instances
          -- forget_instances: AND starts_with(f.limit_key, 'tenant/') AND right(f.limit_key, length($name::text) + 1) = '/' || $name
          -- forget_instances: AND substr(f.limit_key, 8, length(f.limit_key) - 8 - length($name)) NOT IN (
          -- forget_instances:     SELECT o.tenant_id FROM rota.limits o WHERE o.kind = 'tenant' AND o.name = $name)
        LIMIT $limit FOR UPDATE SKIP LOCKED))
RETURNING p.slot;

-- name: forget_instances
-- like: forget_permits
-- The same of a limit that each tenant had one of, but not of tenants with a limit of their own of this name.

-- name: forget_bucket
DELETE FROM rota.bucket WHERE limit_key = $limit_key RETURNING limit_key;

-- name: forget_buckets
-- Delete a batch of the buckets of a limit that each tenant had one of.
DELETE FROM rota.bucket b
 WHERE b.ctid = ANY (ARRAY (
       SELECT f.ctid FROM rota.bucket f
        WHERE starts_with(f.limit_key, 'tenant/') AND right(f.limit_key, length($name::text) + 1) = '/' || $name
          AND substr(f.limit_key, 8, length(f.limit_key) - 8 - length($name)) NOT IN (
              SELECT o.tenant_id FROM rota.limits o WHERE o.kind = 'tenant' AND o.name = $name)
        LIMIT $limit FOR UPDATE SKIP LOCKED))
RETURNING b.limit_key;

-- name: forget_idle_permits
-- Of the $limit keys after one: delete free permits, $most in all, of keys that nobody has used since $idle_since and
-- nobody waits for, and those above their caps. Where a claim misses them, it makes them again. The answer is the last key
-- that was met, how many were, and how many rows went.
WITH RECURSIVE met (limit_key, place) AS (
  SELECT $after::text, 0
  UNION ALL
  SELECT next.limit_key, m.place + 1
    FROM met m
   CROSS JOIN LATERAL (
         SELECT p.limit_key FROM rota.permit p WHERE p.limit_key > m.limit_key ORDER BY p.limit_key LIMIT 1) next
   WHERE m.place < $limit),
known AS MATERIALIZED (
  SELECT m.limit_key, coalesce(n.permits, 0) AS permits,
         -- Not EXISTS, which is planned as a hash of all that wait.
         (SELECT true FROM rota.permit p
           WHERE p.limit_key = m.limit_key AND (p.token IS NOT NULL OR p.used_at > $idle_since) LIMIT 1) IS NULL
         AND (SELECT true FROM rota.pending w
               WHERE w.gate = 'limit' AND w.limit_key = m.limit_key LIMIT 1) IS NULL AS is_idle
    FROM met m
    LEFT JOIN LATERAL (SELECT * FROM rota.numbers_of(m.limit_key) LIMIT 1) n ON true
   WHERE m.place > 0),
gone AS (
  DELETE FROM rota.permit p
   WHERE p.token IS NULL AND p.ctid = ANY (ARRAY (
         SELECT f.ctid
           FROM known k
          CROSS JOIN LATERAL (
                SELECT x.ctid FROM rota.permit x
                 WHERE x.limit_key = k.limit_key AND x.token IS NULL AND (k.is_idle OR x.slot > k.permits)
                 LIMIT $most FOR UPDATE SKIP LOCKED) f
          LIMIT $most))
  RETURNING p.slot)
SELECT max(m.limit_key) AS last, max(m.place) AS met, (SELECT count(*) FROM gone) AS rows FROM met m;

-- name: forget_idle_buckets
-- Of the $limit buckets after one: delete those that nobody has used since $idle_since and that are full again, which is
-- what none means too, and those of limits that have no rate.
WITH met AS MATERIALIZED (
  SELECT b.limit_key, b.tokens, b.refilled_at FROM rota.bucket b
   WHERE b.limit_key > $after ORDER BY b.limit_key LIMIT $limit),
idle AS MATERIALIZED (
  SELECT m.limit_key
    FROM met m
    LEFT JOIN LATERAL (SELECT * FROM rota.numbers_of(m.limit_key) LIMIT 1) n ON true
   WHERE m.refilled_at <= $idle_since
     AND (n.rate IS NULL OR rota.tokens_at($now, n.burst, n.rate, m.tokens, m.refilled_at) >= n.burst)),
gone AS (
  DELETE FROM rota.bucket
   WHERE ctid = ANY (ARRAY (
         SELECT held.ctid
           FROM idle i
          CROSS JOIN LATERAL (
                SELECT b.ctid FROM rota.bucket b WHERE b.limit_key = i.limit_key AND b.refilled_at <= $idle_since
                 LIMIT 1 FOR UPDATE SKIP LOCKED) held))
  RETURNING limit_key)
SELECT max(m.limit_key) AS last, count(*) AS met, (SELECT count(*) FROM gone) AS rows FROM met m;
