-- A run that is given back keeps its place: its lease remembers from when on it had waited. NULL on a lease that a
-- program before this one took.
ALTER TABLE rota.lease ADD COLUMN available_at timestamptz;
COMMENT ON COLUMN rota.lease.available_at IS 'From when on the run had waited when it was claimed; NULL: not known.';
