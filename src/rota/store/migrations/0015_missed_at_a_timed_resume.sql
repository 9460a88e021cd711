-- A pause that ends by itself has the same choice for what it held back as a resume by hand.
ALTER TABLE rota.job ADD COLUMN resume_missed text;
ALTER TABLE rota.job ADD CONSTRAINT job_resume_missed_check
  CHECK (resume_missed IN ('policy', 'drop', 'once', 'catch_up')) NOT VALID;
COMMENT ON COLUMN rota.job.resume_missed IS 'What becomes of missed slots when the pause ends at resume_at; NULL: policy.';
