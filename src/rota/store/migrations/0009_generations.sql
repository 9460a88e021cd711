-- A job that is put under the id of a deleted one is another job: it has a number of its own, and the deleted one's row stays
-- as it was, for the history of its runs. Of those that had an id at most one lives.
ALTER TABLE rota.job ADD COLUMN generation integer NOT NULL DEFAULT 0 CHECK (generation >= 0);
COMMENT ON COLUMN rota.job.generation IS 'How many jobs of this id were deleted before this one.';
CREATE UNIQUE INDEX job_live ON rota.job (shard, tenant_id, job_id) WHERE deleted_at IS NULL;
CREATE INDEX job_deleted ON rota.job (shard, tenant_id, job_id, generation) WHERE deleted_at IS NOT NULL;
ALTER TABLE rota.job DROP CONSTRAINT job_shard_tenant_id_job_id_key;
