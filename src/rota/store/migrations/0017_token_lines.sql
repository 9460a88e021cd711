-- Which token made a token: it ends with it. And the signing secret before the present one, while it still signs.

ALTER TABLE rota.token ADD COLUMN parent_id text;
COMMENT ON COLUMN rota.token.parent_id IS 'The token that made it, with which it ends; NULL: made beside the database, or by 0.1.0.';
CREATE INDEX token_by_parent ON rota.token (parent_id) WHERE parent_id IS NOT NULL;

ALTER TABLE rota.tenant ADD COLUMN former_secret text, ADD COLUMN former_secret_until timestamptz;
COMMENT ON COLUMN rota.tenant.former_secret IS 'The signing secret before the last rotation, with which calls are signed too until former_secret_until.';
