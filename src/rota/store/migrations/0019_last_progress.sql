-- What a run said of its progress goes with its lease: the attempt keeps what was said last.
ALTER TABLE rota.attempt ADD COLUMN progress real, ADD COLUMN progress_note text;
COMMENT ON COLUMN rota.attempt.progress IS 'What its run had last said of its progress, with progress_note; NULL: nothing, or not known.';
