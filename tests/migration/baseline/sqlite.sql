CREATE TABLE adw_locks (
  repository TEXT NOT NULL,
  issue_number BIGINT NOT NULL,
  adw_id TEXT NOT NULL,
  acquired_at TEXT NOT NULL,
  CONSTRAINT pk_adw_locks PRIMARY KEY (repository, issue_number)
);

CREATE TABLE breakers (
  name TEXT NOT NULL,
  state TEXT NOT NULL,
  failures BIGINT NOT NULL,
  generation BIGINT NOT NULL,
  opened_at TEXT,
  reopens_at TEXT,
  reason TEXT NOT NULL,
  permits TEXT NOT NULL,
  settings TEXT NOT NULL,
  changed_at TEXT NOT NULL,
  CONSTRAINT pk_breakers PRIMARY KEY (name),
  CONSTRAINT ck_breakers_state CHECK (state IN ('closed', 'open', 'half_open'))
);

CREATE TABLE counters (
  name TEXT NOT NULL,
  labels TEXT NOT NULL,
  value DOUBLE NOT NULL,
  CONSTRAINT pk_counters PRIMARY KEY (name, labels)
);

CREATE TABLE deliveries (
  seq INTEGER NOT NULL,
  guid TEXT NOT NULL,
  event TEXT NOT NULL,
  action TEXT NOT NULL,
  hook TEXT NOT NULL,
  sender TEXT NOT NULL,
  repository TEXT NOT NULL,
  number BIGINT,
  intent TEXT NOT NULL,
  body_hash TEXT NOT NULL,
  verdict TEXT NOT NULL,
  reason TEXT NOT NULL,
  status TEXT NOT NULL,
  outcome TEXT NOT NULL,
  run_id BIGINT,
  adw_id TEXT NOT NULL,
  received_at TEXT NOT NULL,
  finished_at TEXT,
  deliveries BIGINT NOT NULL,
  request TEXT NOT NULL,
  body BLOB,
  CONSTRAINT pk_deliveries PRIMARY KEY (seq),
  CONSTRAINT ck_deliveries_verdict CHECK (verdict IN ('run', 'command', 'ignored')),
  CONSTRAINT ck_deliveries_status CHECK (status IN ('received', 'done', 'refused', 'failed')),
  CONSTRAINT uq_deliveries_guid UNIQUE (guid),
  CONSTRAINT uq_deliveries_body_hash UNIQUE (body_hash)
);

CREATE TABLE events (
  seq INTEGER NOT NULL,
  event_id TEXT NOT NULL,
  adw_id TEXT NOT NULL,
  revision BIGINT NOT NULL,
  event_type TEXT NOT NULL,
  created_at TEXT NOT NULL,
  status TEXT NOT NULL,
  execution_id TEXT NOT NULL,
  parent_execution_id TEXT,
  parent_event_id TEXT,
  retry_sequence_id TEXT,
  attempt_number BIGINT,
  iteration_index BIGINT,
  total_iterations BIGINT,
  node_id TEXT,
  node_name TEXT,
  node_type TEXT,
  catalog_id TEXT,
  duration DOUBLE,
  result TEXT NOT NULL,
  context TEXT NOT NULL,
  data TEXT NOT NULL,
  meta TEXT NOT NULL,
  CONSTRAINT pk_events PRIMARY KEY (seq),
  CONSTRAINT uq_events_event_id UNIQUE (event_id)
);

CREATE TABLE executions (
  execution_id TEXT NOT NULL,
  adw_id TEXT NOT NULL,
  phase TEXT NOT NULL,
  attempt_number BIGINT NOT NULL,
  step TEXT NOT NULL,
  parent_execution_id TEXT NOT NULL,
  parent_run_id BIGINT,
  catalog_id TEXT NOT NULL,
  state TEXT NOT NULL,
  reason TEXT NOT NULL,
  total BIGINT,
  stored BIGINT NOT NULL,
  next_index BIGINT NOT NULL,
  succeeded BIGINT NOT NULL,
  failed BIGINT NOT NULL,
  cancelled BIGINT NOT NULL,
  cancel_reason TEXT NOT NULL,
  lanes BIGINT NOT NULL,
  last_event BIGINT NOT NULL,
  first_event_id TEXT NOT NULL,
  created_at TEXT NOT NULL,
  ended_at TEXT,
  taken_at TEXT,
  labels TEXT NOT NULL,
  demands TEXT NOT NULL,
  spec TEXT NOT NULL,
  context TEXT NOT NULL,
  CONSTRAINT pk_executions PRIMARY KEY (execution_id),
  CONSTRAINT ck_executions_state CHECK (state IN ('running', 'completed', 'failed', 'cancelled'))
);

CREATE TABLE external_tasks (
  task_id TEXT NOT NULL,
  adw_id TEXT NOT NULL,
  phase TEXT NOT NULL,
  round BIGINT NOT NULL,
  attempt_number BIGINT NOT NULL,
  catalog_id TEXT NOT NULL,
  state TEXT NOT NULL,
  claims BIGINT NOT NULL,
  worker TEXT NOT NULL,
  claim_seconds DOUBLE NOT NULL,
  claim_until TEXT NOT NULL,
  created_at TEXT NOT NULL,
  deadline TEXT NOT NULL,
  ended_at TEXT,
  report_id TEXT NOT NULL,
  is_ok BIGINT,
  summary TEXT NOT NULL,
  error TEXT NOT NULL,
  result TEXT NOT NULL,
  CONSTRAINT pk_external_tasks PRIMARY KEY (task_id),
  CONSTRAINT ck_external_tasks_state CHECK (state IN ('open', 'reported', 'expired')),
  CONSTRAINT ck_external_tasks_is_ok CHECK (is_ok IN (0, 1))
);

CREATE TABLE home_facts (
  name TEXT NOT NULL,
  value TEXT NOT NULL,
  changed_at TEXT NOT NULL,
  CONSTRAINT pk_home_facts PRIMARY KEY (name)
);

CREATE TABLE iteration_pages (
  execution_id TEXT NOT NULL,
  idx BIGINT NOT NULL,
  page BIGINT NOT NULL,
  part TEXT NOT NULL,
  CONSTRAINT pk_iteration_pages PRIMARY KEY (execution_id, idx, page)
);

CREATE TABLE iterations (
  execution_id TEXT NOT NULL,
  idx BIGINT NOT NULL,
  state TEXT NOT NULL,
  attempts BIGINT NOT NULL,
  page BIGINT NOT NULL,
  same_call BIGINT NOT NULL,
  interruptions BIGINT NOT NULL,
  next_at TEXT NOT NULL,
  why TEXT NOT NULL,
  run_id BIGINT,
  token BIGINT NOT NULL,
  last_event_id TEXT NOT NULL,
  sequence_id TEXT NOT NULL,
  fingerprint TEXT NOT NULL,
  same_failures BIGINT NOT NULL,
  marks TEXT NOT NULL,
  error TEXT NOT NULL,
  process TEXT NOT NULL,
  started_at TEXT,
  ended_at TEXT,
  call TEXT NOT NULL,
  element TEXT NOT NULL,
  result TEXT NOT NULL,
  CONSTRAINT pk_iterations PRIMARY KEY (execution_id, idx),
  CONSTRAINT ck_iterations_state CHECK (state IN ('pending', 'running', 'retry_wait', 'completed', 'failed', 'cancelled'))
);

CREATE TABLE notification_cursor (
  name TEXT NOT NULL,
  seq BIGINT NOT NULL,
  event_id TEXT NOT NULL,
  CONSTRAINT pk_notification_cursor PRIMARY KEY (name)
);

CREATE TABLE notifications (
  notice_id INTEGER NOT NULL,
  notice_key TEXT NOT NULL,
  channel TEXT NOT NULL,
  kind TEXT NOT NULL,
  adw_id TEXT NOT NULL,
  title TEXT NOT NULL,
  body TEXT NOT NULL,
  status TEXT NOT NULL,
  attempts BIGINT NOT NULL,
  not_before TEXT NOT NULL,
  error TEXT NOT NULL,
  created_at TEXT NOT NULL,
  sent_at TEXT,
  token BIGINT NOT NULL,
  claim_until DOUBLE NOT NULL,
  claim_boot TEXT NOT NULL,
  CONSTRAINT pk_notifications PRIMARY KEY (notice_id),
  CONSTRAINT ck_notifications_status CHECK (status IN ('pending', 'sent', 'given_up'))
);

CREATE TABLE ports (
  host TEXT NOT NULL,
  port BIGINT NOT NULL,
  adw_id TEXT NOT NULL,
  purpose TEXT NOT NULL,
  owner TEXT NOT NULL,
  reserved_at TEXT NOT NULL,
  CONSTRAINT pk_ports PRIMARY KEY (host, port),
  CONSTRAINT ck_ports_purpose CHECK (purpose IN ('backend', 'frontend'))
);

CREATE TABLE quota_reservations (
  adw_id TEXT NOT NULL,
  host TEXT NOT NULL,
  estimated_cost DOUBLE,
  reserved_at TEXT NOT NULL,
  CONSTRAINT pk_quota_reservations PRIMARY KEY (adw_id)
);

CREATE TABLE report_sums (
  kind TEXT NOT NULL,
  day TEXT NOT NULL,
  workflow TEXT NOT NULL,
  phase TEXT NOT NULL,
  item TEXT NOT NULL,
  number BIGINT NOT NULL,
  amount BIGINT NOT NULL,
  last_at TEXT NOT NULL,
  adw_id TEXT NOT NULL,
  label TEXT NOT NULL,
  CONSTRAINT pk_report_sums PRIMARY KEY (kind, day, workflow, phase, item)
);

CREATE TABLE report_workflows (
  adw_id TEXT NOT NULL,
  workflow TEXT NOT NULL,
  outcome TEXT NOT NULL,
  last_day TEXT NOT NULL,
  attempts BIGINT NOT NULL,
  cost BIGINT NOT NULL,
  sums TEXT NOT NULL,
  CONSTRAINT pk_report_workflows PRIMARY KEY (adw_id)
);

CREATE TABLE requests (
  request_id INTEGER NOT NULL,
  adw_id TEXT NOT NULL,
  kind TEXT NOT NULL,
  payload TEXT NOT NULL,
  asked_by TEXT NOT NULL,
  created_at TEXT NOT NULL,
  handled_at TEXT,
  outcome TEXT,
  CONSTRAINT pk_requests PRIMARY KEY (request_id)
);

CREATE TABLE runners (
  runner_id TEXT NOT NULL,
  owner TEXT NOT NULL,
  host TEXT NOT NULL,
  tags TEXT NOT NULL,
  concurrency BIGINT NOT NULL,
  busy BIGINT NOT NULL,
  version TEXT NOT NULL,
  is_draining BIGINT NOT NULL,
  started_at TEXT NOT NULL,
  heartbeat_at TEXT NOT NULL,
  beat DOUBLE NOT NULL,
  beat_boot TEXT NOT NULL,
  CONSTRAINT pk_runners PRIMARY KEY (runner_id),
  CONSTRAINT ck_runners_is_draining CHECK (is_draining IN (0, 1))
);

CREATE TABLE runs (
  run_id INTEGER NOT NULL,
  adw_id TEXT NOT NULL,
  kind TEXT NOT NULL,
  state TEXT NOT NULL,
  rank BIGINT NOT NULL,
  not_before TEXT NOT NULL,
  attempts BIGINT NOT NULL,
  token BIGINT NOT NULL,
  owner TEXT NOT NULL,
  claim_until DOUBLE NOT NULL,
  claim_boot TEXT NOT NULL,
  reason TEXT NOT NULL,
  payload TEXT NOT NULL,
  asked_by TEXT NOT NULL,
  created_at TEXT NOT NULL,
  updated_at TEXT NOT NULL,
  started_at TEXT,
  finished_at TEXT,
  demands TEXT NOT NULL,
  labels TEXT NOT NULL,
  losses BIGINT NOT NULL,
  slot TEXT NOT NULL,
  parent_run_id BIGINT,
  woken BIGINT,
  CONSTRAINT pk_runs PRIMARY KEY (run_id),
  CONSTRAINT ck_runs_state CHECK (state = 'pending' OR state = 'claimed' OR state = 'running' OR state = 'stopping' OR state = 'completed' OR state = 'failed' OR state = 'stopped' OR state = 'dead')
);

CREATE TABLE schedule (
  name TEXT NOT NULL,
  spec TEXT NOT NULL,
  last_due TEXT NOT NULL,
  last_run TEXT NOT NULL,
  status TEXT NOT NULL,
  outcome TEXT NOT NULL,
  memo TEXT NOT NULL,
  owner TEXT NOT NULL,
  token BIGINT NOT NULL,
  claim_until DOUBLE NOT NULL,
  claim_boot TEXT NOT NULL,
  CONSTRAINT pk_schedule PRIMARY KEY (name),
  CONSTRAINT ck_schedule_status CHECK (status IN ('', 'done', 'failed'))
);

CREATE TABLE sessions (
  session_id TEXT NOT NULL,
  adw_id TEXT NOT NULL,
  run_id BIGINT,
  phase TEXT NOT NULL,
  attempt_number BIGINT NOT NULL,
  agent TEXT NOT NULL,
  host TEXT NOT NULL,
  status TEXT NOT NULL,
  executor_session_id TEXT NOT NULL,
  reason TEXT NOT NULL,
  started_at TEXT NOT NULL,
  ended_at TEXT,
  CONSTRAINT pk_sessions PRIMARY KEY (session_id),
  CONSTRAINT ck_sessions_status CHECK (status IN ('running', 'stopping', 'stopped', 'finished', 'failed'))
);

CREATE TABLE task_checkpoints (
  sequence INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
  id TEXT NOT NULL,
  task_id TEXT NOT NULL,
  adw_id TEXT NOT NULL,
  step_name TEXT,
  created_at TEXT NOT NULL,
  checkpoint_data TEXT NOT NULL,
  CONSTRAINT uq_task_checkpoints_id UNIQUE (id)
);

CREATE TABLE workflow_states (
  adw_id TEXT NOT NULL,
  repository TEXT NOT NULL,
  issue_number BIGINT,
  title TEXT NOT NULL,
  workflow TEXT NOT NULL,
  state TEXT NOT NULL,
  revision BIGINT NOT NULL,
  fence BIGINT NOT NULL,
  owner TEXT NOT NULL,
  lease_until DOUBLE NOT NULL,
  lease_boot TEXT NOT NULL,
  taken_at TEXT NOT NULL,
  home TEXT NOT NULL,
  schema_version TEXT NOT NULL,
  is_costing BIGINT DEFAULT 0 NOT NULL,
  created_at TEXT NOT NULL,
  updated_at TEXT NOT NULL,
  body TEXT NOT NULL,
  CONSTRAINT pk_workflow_states PRIMARY KEY (adw_id),
  CONSTRAINT ck_workflow_states_home CHECK (home IN ('files', 'database'))
);

CREATE INDEX ix_adw_locks_adw_id ON adw_locks (adw_id);

CREATE INDEX ix_deliveries_issue ON deliveries (repository, number, received_at) WHERE verdict <> 'ignored';

CREATE INDEX ix_deliveries_sender ON deliveries (sender, received_at) WHERE verdict <> 'ignored';

CREATE INDEX ix_events_workflow ON events (adw_id, seq);

CREATE INDEX ix_executions_open ON executions (adw_id) WHERE taken_at IS NULL;

CREATE INDEX ix_executions_workflow ON executions (adw_id, created_at);

CREATE INDEX ix_external_tasks_open ON external_tasks (deadline) WHERE state = 'open';

CREATE INDEX ix_external_tasks_workflow ON external_tasks (adw_id, phase, created_at);

CREATE INDEX ix_iterations_running ON iterations (execution_id, run_id) WHERE state = 'running';

CREATE INDEX ix_iterations_waiting ON iterations (execution_id, next_at, idx) WHERE state = 'retry_wait';

CREATE INDEX ix_notifications_waiting ON notifications (notice_id, not_before) WHERE status = 'pending';

CREATE INDEX ix_report_workflows_cost ON report_workflows (cost, adw_id);

CREATE INDEX ix_requests_open ON requests (adw_id, handled_at, request_id);

CREATE INDEX ix_runs_demanding ON runs (demands) WHERE demands <> '' AND state = 'pending';

CREATE INDEX ix_runs_state ON runs (state, run_id) WHERE state NOT IN ('pending', 'completed');

CREATE INDEX ix_runs_waiting ON runs (rank, run_id, not_before) WHERE state = 'pending';

CREATE INDEX ix_runs_workflow ON runs (adw_id, run_id);

CREATE INDEX ix_sessions_open ON sessions (run_id) WHERE ended_at IS NULL;

CREATE INDEX ix_sessions_workflow ON sessions (adw_id, started_at);

CREATE INDEX ix_task_checkpoints_task ON task_checkpoints (task_id, sequence);

CREATE INDEX ix_task_checkpoints_workflow ON task_checkpoints (adw_id);

CREATE INDEX ix_workflow_states_costing ON workflow_states (updated_at) WHERE is_costing = 1;

CREATE INDEX ix_workflow_states_issue ON workflow_states (issue_number, created_at, adw_id);

CREATE INDEX ix_workflow_states_newest ON workflow_states (created_at, adw_id, title, repository, issue_number);

CREATE INDEX ix_workflow_states_repository ON workflow_states (repository, created_at, adw_id);

CREATE INDEX ix_workflow_states_repository_issue ON workflow_states (repository, issue_number, created_at, adw_id);

CREATE INDEX ix_workflow_states_state ON workflow_states (state, created_at, adw_id);

CREATE INDEX ix_workflow_states_workflow ON workflow_states (workflow, created_at, adw_id);

CREATE UNIQUE INDEX uq_deliveries_intent ON deliveries (intent) WHERE intent <> '';

CREATE UNIQUE INDEX uq_notifications_key ON notifications (notice_key, channel);

CREATE UNIQUE INDEX uq_ports_workflow ON ports (adw_id, host, purpose);

CREATE UNIQUE INDEX uq_runs_unfinished ON runs (adw_id, slot) WHERE finished_at IS NULL;

CREATE VIEW phases AS
SELECT
  json_extract(phase.value, '$.name') AS phase_id,
  flow.adw_id AS run_id,
  coalesce((SELECT json_extract(defined.value, '$.tier') FROM json_each(flow.body, '$.workflow.phases') AS defined
    WHERE json_extract(defined.value, '$.name') = json_extract(phase.value, '$.name')), 0) AS tier_id,
  phase.key AS phase_index,
  json_extract(phase.value, '$.name') AS name,
  CASE json_extract(phase.value, '$.status')
    WHEN 'queued' THEN 'QUEUED'
    WHEN 'complete' THEN 'COMPLETE'
    WHEN 'failed' THEN 'FAILED'
    WHEN 'skipped' THEN 'SKIPPED'
    WHEN 'retry_wait' THEN
      CASE WHEN coalesce(json_extract(phase.value, '$.attempts_used'), 0) = 0 THEN 'QUEUED' ELSE 'EXECUTING' END
    ELSE 'EXECUTING'
  END AS state,
  json_extract(phase.value, '$.status') AS status,
  coalesce(json_extract(phase.value, '$.attempts_used'), 0) AS attempts_used,
  coalesce(json_extract(phase.value, '$.max_attempts'), 5) + coalesce(json_extract(phase.value, '$.granted'), 0)
    AS max_attempts,
  coalesce(json_array_length(phase.value, '$.attempts'), 0) AS total_attempts,
  json_extract(phase.value, '$.last_failure_reason') AS last_failure_reason,
  json_extract(phase.value, '$.terminal_reason') AS terminal_reason,
  coalesce(json_extract(phase.value, '$.attempts[#-1].started_at'),
           json_extract(phase.value, '$.last_attempt_timestamp')) AS last_attempt_timestamp,
  json_extract(phase.value, '$.retry_at') AS retry_at,
  flow.created_at AS created_at,
  json_extract(phase.value, '$.attempts[0].started_at') AS started_at,
  coalesce(json_extract(phase.value, '$.attempts[#-1].ended_at'),
           json_extract(phase.value, '$.attempts[#-1].started_at'), flow.created_at) AS updated_at,
  CASE WHEN json_extract(phase.value, '$.status') IN ('complete', 'failed', 'skipped')
    THEN json_extract(phase.value, '$.attempts[#-1].ended_at') END AS completed_at,
  json_extract(phase.value, '$.state') AS workflow_state,
  coalesce(json_extract(phase.value, '$.round'), 1) AS round
FROM workflow_states AS flow, json_each(CASE
    WHEN flow.body = '' THEN '{}'
    WHEN instr(flow.body, '\u0000') > 0
      THEN replace(replace(replace(flow.body, '\\', char(1)), '\u0000', '\ufffd'), char(1), '\\')
    ELSE flow.body
  END, '$.phases') AS phase;

CREATE VIEW tasks AS
SELECT
  phase.run_id || '/' || phase.phase_id || CASE WHEN phase.round > 1 THEN '/' || phase.round ELSE '' END AS id,
  phase.run_id AS adw_id,
  phase.phase_id AS phase,
  phase.status AS status,
  (SELECT kept.created_at FROM task_checkpoints AS kept WHERE kept.task_id = phase.run_id || '/' || phase.phase_id || CASE WHEN phase.round > 1 THEN '/' || phase.round ELSE '' END
    ORDER BY kept.sequence DESC LIMIT 1) AS checkpoint_at,
  (SELECT kept.step_name FROM task_checkpoints AS kept WHERE kept.task_id = phase.run_id || '/' || phase.phase_id || CASE WHEN phase.round > 1 THEN '/' || phase.round ELSE '' END
    ORDER BY kept.sequence DESC LIMIT 1) AS resume_from,
  phase.attempts_used AS attempt_count,
  phase.max_attempts AS max_attempts,
  (SELECT json_extract(defined.value, '$.retry.strategy') FROM json_each(flow.body, '$.workflow.phases') AS defined
    WHERE json_extract(defined.value, '$.name') = phase.phase_id) AS backoff_strategy,
  (SELECT json_extract(defined.value, '$.retry.base_seconds') FROM json_each(flow.body, '$.workflow.phases') AS defined
    WHERE json_extract(defined.value, '$.name') = phase.phase_id) AS backoff_base_seconds
FROM phases AS phase JOIN workflow_states AS flow ON flow.adw_id = phase.run_id;

CREATE VIEW run_status AS
SELECT
  run.run_id AS run_id,
  (SELECT agent.session_id FROM sessions AS agent WHERE agent.run_id = run.run_id
    ORDER BY agent.started_at DESC, agent.session_id DESC LIMIT 1) AS session_id,
  run.adw_id AS adw_id,
  run.kind AS type,
  CASE run.state WHEN 'dead' THEN 'failed' ELSE run.state END AS status,
  run.state AS state,
  CASE WHEN run.owner <> '' THEN CASE WHEN json_valid(run.owner) THEN json_extract(run.owner, '$.token') END END AS runner_id,
  run.attempts AS attempts,
  run.losses AS losses,
  CASE WHEN run.state IN ('failed', 'dead') THEN run.reason END AS error,
  run.reason AS reason,
  run.created_at AS created_at,
  CASE WHEN run.owner <> '' THEN (CASE run.state WHEN 'stopping' THEN coalesce(run.started_at, run.updated_at) ELSE run.updated_at END) END AS claimed_at,
  run.started_at AS started_at,
  run.finished_at AS completed_at
FROM runs AS run;

CREATE TABLE alembic_version (version_num VARCHAR(32) CONSTRAINT alembic_version_pkc PRIMARY KEY);

INSERT INTO alembic_version VALUES ('0001');
