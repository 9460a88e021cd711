-- name: flow_depths
-- How many runs wait in each pool, of each priority, behind each gate, and since when the first of them could have
-- started; over at most $most runs.
SELECT pool, priority, gate, count(*) AS runs, min(available_at) AS oldest
  FROM (SELECT pool, priority, gate, available_at FROM rota.pending LIMIT $most) p
 GROUP BY pool, priority, gate ORDER BY pool, priority, gate;

-- name: flow_use
-- Under each limit's name, and under "job" and "key" for all limits of jobs' own: how many runs are parked, how many
-- permits are held, and of downstreams also permits and the tokens left. No tenant's name and no key's value is in a
-- name. At most $most rows of each table are looked at; of the names the $shown largest are told.
WITH parked AS (
  SELECT CASE WHEN split_part(p.limit_key, '/', 1) IN ('job', 'key') THEN split_part(p.limit_key, '/', 1)
              ELSE split_part(p.limit_key, '/', -1) END AS name, count(*) AS runs
    FROM (SELECT limit_key FROM rota.pending WHERE gate = 'limit' LIMIT $most) p GROUP BY 1),
held AS (
  SELECT CASE WHEN split_part(p.limit_key, '/', 1) IN ('job', 'key') THEN split_part(p.limit_key, '/', 1)
              ELSE split_part(p.limit_key, '/', -1) END AS name, count(*) FILTER (WHERE p.token IS NOT NULL) AS permits
    FROM (SELECT limit_key, token FROM rota.permit LIMIT $most) p GROUP BY 1),
known AS (
  SELECT l.name, sum(l.permits) AS permits,
         min(rota.tokens_at($now, l.burst, l.rate, b.tokens, b.refilled_at)) FILTER (WHERE l.rate IS NOT NULL) AS tokens
    FROM (SELECT * FROM rota.limits WHERE kind = 'downstream' LIMIT $most) l
    LEFT JOIN LATERAL (
         SELECT x.* FROM rota.bucket x
          WHERE x.limit_key = format('downstream/%s/%s', l.tenant_id, l.name) LIMIT 1) b ON true
   GROUP BY l.name)
SELECT name, coalesce(parked.runs, 0) AS parked, coalesce(held.permits, 0) AS in_use, known.permits, known.tokens
  FROM parked FULL JOIN held USING (name) FULL JOIN known USING (name)
 ORDER BY coalesce(parked.runs, 0) + coalesce(held.permits, 0) DESC, coalesce(known.permits, 0) DESC, name LIMIT $shown;
