-- Whether a waiting run may have a payload of its own, which the claim then looks for. True where nobody says so: for
-- rows of before, and for what processes of the version before write.
ALTER TABLE rota.pending ADD COLUMN has_payload boolean NOT NULL DEFAULT true;

-- A job by its name, without its shard, which SQL cannot compute: for triggers in a caller's transaction.
CREATE INDEX job_by_name ON rota.job (tenant_id, job_id) WHERE deleted_at IS NULL;
DROP INDEX rota.job_of_tenant;
