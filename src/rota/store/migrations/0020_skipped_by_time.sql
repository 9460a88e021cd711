-- The slot ledger over all jobs, by the time at which its entries were made.
CREATE INDEX skipped_recorded ON rota.skipped (recorded_at);
