-- A run shows the payload that it ran with: a claim notes its job's version, and an edit keeps the payload that it replaces.
-- NULL where a program before this one made the claim; such a run shows the payload of today.
ALTER TABLE rota.lease ADD COLUMN job_version bigint;
ALTER TABLE rota.attempt ADD COLUMN job_version bigint;
ALTER TABLE rota.job ADD COLUMN payload_since bigint NOT NULL DEFAULT 1;
COMMENT ON COLUMN rota.lease.job_version IS 'The version of its job that the run was claimed with.';
COMMENT ON COLUMN rota.attempt.job_version IS 'The version of its job that it ran with.';
COMMENT ON COLUMN rota.job.payload_since IS 'The version with which the present payload came.';

CREATE TABLE rota.former_payload (
  shard smallint NOT NULL,
  job_uid bigint NOT NULL,
  since bigint NOT NULL,
  payload jsonb NOT NULL,
  PRIMARY KEY (shard, job_uid, since)
);
COMMENT ON TABLE rota.former_payload IS 'Payloads that jobs had from a version on, until a later one; the last ones of each job.';
