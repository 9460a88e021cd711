-- name: note_changes
-- Enter changes into the audit log, in the transaction that makes them.
INSERT INTO rota.audit (tenant_id, at, audit_id, actor, action, subject, before, after)
SELECT a.tenant_id, $now, a.audit_id, $actor, a.action, a.subject, a.before, a.after
  FROM unnest($tenant_ids::text[], $audit_ids::uuid[], $actions::text[], $subjects::text[], $befores::jsonb[],
              $afters::jsonb[]) a (tenant_id, audit_id, action, subject, before, after);

-- name: list_changes
-- One page of a tenant's audit log, latest first, before a given entry.
SELECT at, audit_id, actor, action, subject, before, after FROM rota.audit
 WHERE tenant_id = $tenant_id AND (at, audit_id) < ($before_at::timestamptz, $before_id::uuid)
 ORDER BY at DESC, audit_id DESC LIMIT $limit;

-- name: list_changes_of
-- The same of one subject, by an index of its own: a job's entries lie among those of a million others.
SELECT at, audit_id, actor, action, subject, before, after FROM rota.audit
 WHERE tenant_id = $tenant_id AND subject = $subject
   AND (at, audit_id) < ($before_at::timestamptz, $before_id::uuid)
 ORDER BY at DESC, audit_id DESC LIMIT $limit;
