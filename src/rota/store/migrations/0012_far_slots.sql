-- Slots that lie in no month of their own share one partition, whatever their number: nobody's slot makes tables. Upkeep
-- makes the months of the present ahead, and what lies in them by then moves in.
DO $$
DECLARE
  parent text;
BEGIN
  FOREACH parent IN ARRAY ARRAY['run', 'attempt'] LOOP
    EXECUTE format('CREATE TABLE rota.%I (LIKE rota.%I INCLUDING ALL)', parent || '_far', parent);
    IF parent = 'run' THEN
      -- A floor of pages, as for the months.
      ALTER TABLE rota.run_far SET (vacuum_truncate = false);
      INSERT INTO rota.run_far (shard, job_uid, scheduled_for, created_at, origin)
      SELECT 0, n, 'epoch', 'epoch', 'manual' FROM generate_series(1, 2000) n;
      DELETE FROM rota.run_far;
    END IF;
    EXECUTE format('ALTER TABLE rota.%I SET (fillfactor = %s, autovacuum_vacuum_scale_factor = 0.1,
                                             autovacuum_analyze_scale_factor = 0.05)',
                   parent || '_far', CASE parent WHEN 'run' THEN 50 ELSE 100 END);
    EXECUTE format('ALTER TABLE rota.%I ATTACH PARTITION rota.%I DEFAULT', parent, parent || '_far');
  END LOOP;
END
$$;
COMMENT ON TABLE rota.run_far IS 'Runs whose slot lies in a month without a partition of its own: far from now, either way.';
COMMENT ON TABLE rota.attempt_far IS 'Attempts of such runs.';
