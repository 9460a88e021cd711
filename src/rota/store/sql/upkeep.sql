-- name: database_now
-- The one statement that reads the primary's clock: everything else is told the time.
SELECT clock_timestamp() AS now;

-- name: ensure_month
SELECT rota.ensure_month($month::date) AS made;

-- name: send_hint
-- Wake listeners. Sent on its own, outside every state change: NOTIFY inside one destroys group commit.
SELECT pg_notify('rota_hint', $topic);
