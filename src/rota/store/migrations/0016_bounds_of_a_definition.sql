-- What SQL could write into a definition and the program refuses is refused here, too. NOT VALID: rows that are there stay.
ALTER TABLE rota.job
  ADD CONSTRAINT job_pause_after_most CHECK (pause_after <= 1000) NOT VALID,
  ADD CONSTRAINT job_misfire_grace_most CHECK (misfire_grace_ms <= 31 * 86400000::bigint) NOT VALID,
  ADD CONSTRAINT job_jitter_most CHECK (jitter_ms <= 86400000) NOT VALID,
  ADD CONSTRAINT job_start_deadline_most CHECK (start_deadline_ms <= 31 * 86400000::bigint) NOT VALID,
  ADD CONSTRAINT job_objects CHECK (jsonb_typeof(payload) = 'object' AND jsonb_typeof(labels) = 'object'
                                    AND jsonb_typeof(limits) = 'object') NOT VALID;
