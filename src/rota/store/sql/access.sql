-- name: has_tokens
-- Whether anybody has a token that still holds.
SELECT EXISTS (SELECT FROM rota.token WHERE revoked_at IS NULL AND (expires_at IS NULL OR expires_at > $now)) AS found;

-- name: add_token
INSERT INTO rota.token (token_id, tenant_id, name, scopes, secret_hash, created_at, created_by, expires_at)
VALUES ($token_id, $tenant_id, $name, $scopes, $secret_hash, $now, $created_by, $expires_at)
RETURNING token_id;

-- name: get_token
SELECT token_id, tenant_id, name, scopes, secret_hash, created_at, created_by, expires_at, revoked_at, last_used_at
  FROM rota.token WHERE token_id = $token_id;

-- name: list_tokens
-- A tenant's tokens, revoked and expired ones too, latest first.
SELECT token_id, tenant_id, name, scopes, created_at, created_by, expires_at, revoked_at, last_used_at
  FROM rota.token WHERE tenant_id = $tenant_id ORDER BY created_at DESC, token_id LIMIT $limit;

-- name: revoke_token
-- Let a tenant's token hold no longer; no row: it is unknown there, or was revoked before.
UPDATE rota.token SET revoked_at = $now
 WHERE token_id = $token_id AND tenant_id = $tenant_id AND revoked_at IS NULL
RETURNING token_id;

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
SELECT signing_secret FROM rota.tenant WHERE tenant_id = $tenant_id;

-- name: lock_job_quotas
-- How many jobs these tenants may have, where that is limited: locked, so that two who make jobs take turns.
SELECT tenant_id, max_jobs FROM rota.tenant
 WHERE tenant_id = ANY ($tenant_ids::text[]) AND max_jobs IS NOT NULL ORDER BY tenant_id FOR NO KEY UPDATE;
