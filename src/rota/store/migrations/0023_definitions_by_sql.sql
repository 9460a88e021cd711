-- More of what SQL could write into a definition and the program refuses. NOT VALID: rows that are there stay.
ALTER TABLE rota.job
  ADD CONSTRAINT job_limits_costs CHECK (NOT jsonb_path_exists(limits,
    'strict $.* ? (@.type() != "number" || @ < 1 || @ > 1000 || @ != @.floor())', '{}', true)) NOT VALID,
  ADD CONSTRAINT job_labels_texts CHECK (NOT jsonb_path_exists(labels,
    'strict $.* ? (@.type() != "string")', '{}', true)) NOT VALID,
  ADD CONSTRAINT job_retry_numbers CHECK (jsonb_typeof(retry) = 'object' AND NOT jsonb_path_exists(retry,
    'strict $.* ? (@.type() != "number" || @ < 0 || @ > 2592000)', '{}', true)) NOT VALID,
  ADD CONSTRAINT job_payload_numbers CHECK (octet_length(payload::text) < 4300 OR NOT jsonb_path_exists(payload,
    'strict $.** ? (@.type() == "number" && (@ >= 1e4300 || @ <= -1e4300))', '{}', true)) NOT VALID;
