-- name: has_tokens
-- Whether anybody has a token that still holds.
SELECT EXISTS (SELECT FROM rota.token WHERE revoked_at IS NULL AND (expires_at IS NULL OR expires_at > $now)) AS found;

-- name: lock_tokens_of
-- Have the turn at making a tenant's tokens, until the transaction ends.
SELECT pg_advisory_xact_lock(hashtextextended('rota.token:' || $tenant_id::text, 0))::text AS locked;

-- name: add_token
-- Keep a token. No row: the tenant has $most that hold.
INSERT INTO rota.token (token_id, tenant_id, name, scopes, secret_hash, created_at, created_by, expires_at, parent_id)
SELECT $token_id, $tenant_id, $name, $scopes::text[], $secret_hash, $now, $created_by, $expires_at, $parent_id
 WHERE (SELECT count(*) FROM (
          SELECT FROM rota.token
           WHERE tenant_id = $tenant_id AND revoked_at IS NULL AND (expires_at IS NULL OR expires_at > $now)
           LIMIT $most) held) < $most
RETURNING token_id;

-- name: forget_tokens
-- Forget some of a tenant's tokens that ended long ago. One that made others stays: they are judged by it.
DELETE FROM rota.token WHERE token_id = ANY (ARRAY (
  SELECT t.token_id FROM rota.token t
   WHERE t.tenant_id = $tenant_id AND (t.revoked_at < $before OR t.expires_at < $before)
     AND NOT EXISTS (SELECT FROM rota.token child WHERE child.parent_id = t.token_id)
   LIMIT $limit))
RETURNING token_id;

-- name: get_token
-- A token with the earliest end of all that it comes from, and how many these are: what a token made ends with it.
WITH RECURSIVE line AS (
  SELECT token_id, parent_id, expires_at, revoked_at, 1 AS depth FROM rota.token WHERE token_id = $token_id
  UNION ALL
  SELECT p.token_id, p.parent_id, p.expires_at, p.revoked_at, line.depth + 1
    FROM line CROSS JOIN LATERAL (SELECT * FROM rota.token x WHERE x.token_id = line.parent_id LIMIT 1) p
   WHERE line.depth < 10)
SELECT t.token_id, t.tenant_id, t.name, t.scopes, t.secret_hash, t.created_at, t.created_by, t.last_used_at, t.parent_id,
       (SELECT min(line.expires_at) FROM line) AS expires_at, (SELECT min(line.revoked_at) FROM line) AS revoked_at,
       (SELECT max(line.depth) FROM line) AS depth
  FROM rota.token t WHERE t.token_id = $token_id;

-- name: list_tokens
-- A tenant's tokens, revoked and expired ones too, latest first, before a given place.
SELECT token_id, tenant_id, name, scopes, created_at, created_by, expires_at, revoked_at, last_used_at, parent_id
  FROM rota.token WHERE tenant_id = $tenant_id AND (created_at, token_id) < ($before::timestamptz, $before_id::text)
 ORDER BY created_at DESC, token_id DESC LIMIT $limit;

-- name: revoke_token
-- Let a tenant's token hold no longer, nor any that it made; no row: it is unknown there, or was revoked before.
WITH RECURSIVE line AS (
  SELECT token_id, 1 AS depth FROM rota.token
   WHERE token_id = $token_id AND tenant_id = $tenant_id AND revoked_at IS NULL
  UNION ALL
  SELECT c.token_id, line.depth + 1 FROM line JOIN rota.token c ON c.parent_id = line.token_id WHERE line.depth < 10)
UPDATE rota.token t SET revoked_at = $now FROM line WHERE t.token_id = line.token_id AND t.revoked_at IS NULL
RETURNING t.token_id, t.tenant_id, t.name, t.scopes, t.created_at, t.created_by, t.expires_at, t.revoked_at,
          t.last_used_at, t.parent_id;

-- name: note_used
-- Note that tokens were used, unless that was noted since $before. Who else is about to write one of them notes as much.
UPDATE rota.token SET last_used_at = $now
 WHERE token_id IN (
       SELECT token_id FROM rota.token
        WHERE token_id = ANY ($token_ids::text[]) AND (last_used_at IS NULL OR last_used_at < $before)
        ORDER BY token_id FOR NO KEY UPDATE SKIP LOCKED)
RETURNING token_id;

-- name: ensure_tenant
-- Make a tenant's row, with no quotas and the key that is offered; no row: it is there, with a key of its own.
INSERT INTO rota.tenant (tenant_id, signing_secret, created_at, updated_at)
VALUES ($tenant_id, $signing_secret, $now, $now)
ON CONFLICT (tenant_id) DO NOTHING
RETURNING tenant_id;

-- name: lock_tenant
SELECT tenant_id, max_jobs, max_payload_bytes, calls_per_second, weight, created_at, updated_at
  FROM rota.tenant WHERE tenant_id = $tenant_id FOR NO KEY UPDATE;

-- name: set_quotas
UPDATE rota.tenant SET max_jobs = $max_jobs, max_payload_bytes = $max_payload_bytes,
       calls_per_second = $calls_per_second, weight = $weight, updated_at = $now
 WHERE tenant_id = $tenant_id
RETURNING tenant_id, max_jobs, max_payload_bytes, calls_per_second, weight, created_at, updated_at;

-- name: get_tenant
SELECT tenant_id, max_jobs, max_payload_bytes, calls_per_second, weight, created_at, updated_at
  FROM rota.tenant WHERE tenant_id = $tenant_id;

-- name: list_tenants
SELECT tenant_id, max_jobs, max_payload_bytes, calls_per_second, weight, created_at, updated_at
  FROM rota.tenant ORDER BY tenant_id LIMIT $limit;

-- name: get_signing_secret
SELECT signing_secret, former_secret, former_secret_until FROM rota.tenant WHERE tenant_id = $tenant_id;

-- name: rotate_signing_secret
-- Give a tenant another signing secret, beside which the one before signs until $until; NULL: no longer.
UPDATE rota.tenant SET signing_secret = $secret, former_secret_until = $until, updated_at = $now,
       former_secret = CASE WHEN $until::timestamptz IS NULL THEN NULL ELSE signing_secret END
 WHERE tenant_id = $tenant_id
RETURNING signing_secret, former_secret, former_secret_until;

-- name: lock_job_quotas
-- How many jobs these tenants may have, where that is limited: locked, so that two who make jobs take turns.
SELECT tenant_id, max_jobs FROM rota.tenant
 WHERE tenant_id = ANY ($tenant_ids::text[]) AND max_jobs IS NOT NULL ORDER BY tenant_id FOR NO KEY UPDATE;
