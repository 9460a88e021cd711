-- Functions have a text of their own, sql/functions.sql: which one is in force is known by its checksum.
ALTER TABLE rota.cluster ADD COLUMN functions text;
COMMENT ON COLUMN rota.cluster.functions IS 'SHA-256 of the functions'' text that is in force.';
