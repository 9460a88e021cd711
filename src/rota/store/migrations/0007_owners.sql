-- Whose a job is: the code's that declares it, or an operator's. Processes of 0.1.0 know nothing of it: they leave these
-- columns as they are, and the jobs that they make have none.

ALTER TABLE rota.job
  ADD COLUMN owner text CHECK (owner IN ('code', 'operator')),
  ADD COLUMN source text,
  ADD COLUMN declared jsonb,
  ADD COLUMN overrides jsonb,
  ADD COLUMN orphaned_at timestamptz;
CREATE INDEX job_of_source ON rota.job (tenant_id, source) WHERE source IS NOT NULL AND deleted_at IS NULL;
COMMENT ON COLUMN rota.job.owner IS 'NULL: put by a version that knew no owners.';
COMMENT ON COLUMN rota.job.source IS 'The app that declares it, or the import that made it.';
COMMENT ON COLUMN rota.job.declared IS 'The definition as the code gave it last.';
COMMENT ON COLUMN rota.job.overrides IS 'Fields that an operator changed since, which stay until the code''s value changes.';
COMMENT ON COLUMN rota.job.orphaned_at IS 'Since when its source declares it no longer.';
