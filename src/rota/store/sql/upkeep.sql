-- name: database_now
-- The one statement that reads the primary's clock: everything else is told the time.
SELECT clock_timestamp() AS now;

-- name: ensure_month
SELECT rota.ensure_month($month::date) AS made;

-- name: send_hint
-- Wake listeners. Sent on its own, outside every state change: NOTIFY inside one destroys group commit.
SELECT pg_notify('rota_hint', $topic);

-- name: hold_bell
-- Let `rota.ring` tell this session's process of runs that are made in SQL; false: not at this moment.
SELECT pg_try_advisory_lock_shared(1919907937, hashtext($pool)) AS is_held;

-- name: drop_bell
-- Be told no longer.
SELECT pg_advisory_unlock_shared(1919907937, hashtext($pool)) AS was_held;

-- name: seen_session
-- What a session shows of the way to the server: which process it meets, and under what bounds it stands by itself.
-- $own_name is the name under which this very statement was prepared: a pooler that keeps those gives its own names.
SELECT pg_backend_pid() AS pid, pg_is_in_recovery() AS is_standby,
       current_setting('default_transaction_read_only')::boolean AS is_read_only,
       extract(epoch FROM current_setting('statement_timeout')::interval)::float8 AS statement,
       extract(epoch FROM current_setting('lock_timeout')::interval)::float8 AS lock,
       EXISTS (SELECT FROM pg_prepared_statements p WHERE p.name = $own_name::text) AS has_own_name;

-- name: backend
-- Which process of the server this session meets.
SELECT pg_backend_pid() AS pid;
