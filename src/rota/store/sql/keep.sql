-- Lets a database know its rows, so that it, and each copy of it, can have them put back: see spare.py.

CREATE SCHEMA rota_kept;
CREATE TABLE rota_kept.changed (command text NOT NULL);

CREATE FUNCTION rota_kept.note() RETURNS event_trigger
  LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$ BEGIN INSERT INTO rota_kept.changed VALUES (tg_tag); END $$;

DO $make$
DECLARE
  name text;
  deletes text := '';
  inserts text := '';
  filled boolean;
BEGIN
  FOR name IN SELECT relname FROM pg_class
               WHERE relnamespace = 'rota'::regnamespace AND relkind IN ('r', 'p') AND NOT relispartition
  LOOP
    deletes := deletes || format('DELETE FROM rota.%I; GET DIAGNOSTICS n = ROW_COUNT; gone := gone + n;', name);
    EXECUTE format('SELECT EXISTS (SELECT FROM rota.%I)', name) INTO filled;
    IF filled THEN
      EXECUTE format('CREATE TABLE rota_kept.%I AS TABLE rota.%1$I', name);
      inserts := inserts || format('INSERT INTO rota.%I TABLE rota_kept.%1$I;', name);
    END IF;
  END LOOP;
  EXECUTE format($function$
    -- Make the rows those that the database began with, and end all sessions but `own`. Returns how many these are;
    -- -1: something that is no row was changed, or too many rows.
    CREATE FUNCTION rota_kept.put_back(own text, rows_limit bigint) RETURNS integer
      LANGUAGE plpgsql SET client_min_messages = error SET lock_timeout = '2s'
    AS $body$
    DECLARE
      gone bigint := 0;
      n bigint;
    BEGIN
      PERFORM pg_terminate_backend(pid, 5000) FROM pg_stat_activity
        WHERE datname = current_database() AND backend_type = 'client backend' AND application_name <> own;
      PERFORM pg_stat_clear_snapshot();
      IF EXISTS (SELECT FROM pg_stat_activity
                  WHERE datname = current_database() AND backend_type = 'client backend' AND application_name <> own)
         OR EXISTS (SELECT FROM rota_kept.changed)
         OR EXISTS (SELECT FROM pg_db_role_setting
                     WHERE setdatabase = (SELECT oid FROM pg_database WHERE datname = current_database()))
      THEN
        RETURN -1;
      END IF;
      %s
      IF gone > rows_limit THEN
        RETURN -1;
      END IF;
      %s
      RETURN count(*) FROM pg_stat_activity
              WHERE datname = current_database() AND backend_type = 'client backend';
    END $body$
  $function$, deletes, inserts);
END $make$;

CREATE EVENT TRIGGER rota_kept_changes ON ddl_command_end EXECUTE FUNCTION rota_kept.note();
CREATE EVENT TRIGGER rota_kept_drops ON sql_drop EXECUTE FUNCTION rota_kept.note();
