-- What a shared loop leaves out for a while stood in one process's memory and its log: here anybody can read of it.
CREATE TABLE rota.set_aside (
  shard smallint NOT NULL,
  job_uid bigint NOT NULL,
  what text NOT NULL CHECK (what IN ('slot', 'runs', 'leases', 'resume')),
  epoch bigint NOT NULL,
  reason text NOT NULL,
  since timestamptz NOT NULL,
  PRIMARY KEY (shard, job_uid, what));
COMMENT ON TABLE rota.set_aside IS
  'Jobs that a scheduler cannot serve for now, with the reason; true as long as the shard is owned under that epoch.';
