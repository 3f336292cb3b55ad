CREATE TABLE blob_chunks (
	digest TEXT NOT NULL,
	n INTEGER NOT NULL,
	data BLOB NOT NULL,
	PRIMARY KEY (digest, n)
)
-- next
CREATE TABLE ledger (
	seq INTEGER NOT NULL,
	kind TEXT NOT NULL,
	ticket_id INTEGER,
	session_id TEXT,
	body TEXT NOT NULL,
	at TEXT NOT NULL,
	prev_hash TEXT NOT NULL,
	hash TEXT NOT NULL,
	PRIMARY KEY (seq)
)
-- next
CREATE INDEX idx_ledger_session ON ledger (session_id)
-- next
CREATE INDEX idx_ledger_ticket ON ledger (ticket_id)
-- next
CREATE TABLE ledger_head (
	id INTEGER NOT NULL,
	seq INTEGER NOT NULL,
	hash TEXT NOT NULL,
	PRIMARY KEY (id)
)
-- next
CREATE TABLE monitor_states (
	violation_key TEXT NOT NULL,
	invariant_name TEXT NOT NULL,
	light TEXT NOT NULL,
	since TEXT NOT NULL,
	first_seen TEXT,
	changes TEXT NOT NULL,
	greens INTEGER NOT NULL,
	last_value TEXT,
	updated_at TEXT NOT NULL,
	PRIMARY KEY (violation_key)
)
-- next
CREATE TABLE workers (
	id TEXT NOT NULL,
	host TEXT NOT NULL,
	pid INTEGER NOT NULL,
	started_at TEXT NOT NULL,
	lease_until BIGINT NOT NULL,
	PRIMARY KEY (id)
)
-- next
CREATE TABLE tickets (
	id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
	violation_key TEXT NOT NULL,
	invariant_name TEXT NOT NULL,
	store_id TEXT,
	status TEXT DEFAULT 'open' NOT NULL,
	held BOOLEAN DEFAULT false NOT NULL,
	batch_key TEXT,
	occurrence_count INTEGER DEFAULT 1 NOT NULL,
	first_seen_at TEXT NOT NULL,
	last_seen_at TEXT NOT NULL,
	resolved_at TEXT,
	message TEXT NOT NULL,
	severity TEXT DEFAULT 'warning' NOT NULL,
	diagnosis TEXT,
	metric_snapshot TEXT,
	subject_context TEXT,
	variant_model TEXT,
	variant_system_prompt TEXT,
	variant_tools_config TEXT,
	created_at TEXT DEFAULT CURRENT_TIMESTAMP NOT NULL,
	updated_at TEXT DEFAULT CURRENT_TIMESTAMP NOT NULL,
	kind TEXT DEFAULT 'incident' NOT NULL,
	reason TEXT,
	priority INTEGER DEFAULT 0 NOT NULL,
	run_at BIGINT DEFAULT 0 NOT NULL,
	fence INTEGER DEFAULT 0 NOT NULL,
	wake INTEGER DEFAULT 0 NOT NULL,
	owner TEXT,
	cancel_requested BOOLEAN DEFAULT false NOT NULL,
	session_id TEXT,
	fingerprint TEXT,
	check_spec TEXT,
	check_hash TEXT,
	reopen_count INTEGER DEFAULT 0 NOT NULL,
	reopened_from TEXT,
	watch_until TEXT,
	flapping BOOLEAN DEFAULT false NOT NULL,
	FOREIGN KEY(owner) REFERENCES workers (id)
)
-- next
CREATE INDEX idx_tickets_key_resolved ON tickets (violation_key, resolved_at)
-- next
CREATE INDEX idx_tickets_ready ON tickets (priority DESC, id) WHERE status = 'open'
-- next
CREATE INDEX idx_tickets_running ON tickets (owner) WHERE status = 'running'
-- next
CREATE INDEX idx_tickets_waiting ON tickets (run_at) WHERE status = 'waiting_for_input'
-- next
CREATE UNIQUE INDEX ux_tickets_open_key ON tickets (violation_key) WHERE (status NOT IN ('resolved', 'canceled'))
-- next
CREATE TABLE agent_sessions (
	id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
	session_id TEXT NOT NULL,
	ticket_id INTEGER,
	status TEXT DEFAULT 'running' NOT NULL,
	started_at TEXT NOT NULL,
	ended_at TEXT,
	outcome_summary TEXT,
	created_at TEXT DEFAULT CURRENT_TIMESTAMP NOT NULL,
	head_seq INTEGER DEFAULT (-1) NOT NULL,
	head_hash TEXT DEFAULT '0000000000000000000000000000000000000000000000000000000000000000' NOT NULL,
	UNIQUE (session_id),
	FOREIGN KEY(ticket_id) REFERENCES tickets (id)
)
-- next
CREATE INDEX idx_agent_sessions_status ON agent_sessions (status)
-- next
CREATE INDEX idx_agent_sessions_ticket ON agent_sessions (ticket_id)
-- next
CREATE TABLE inbox (
	id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
	ticket_id INTEGER NOT NULL,
	body TEXT NOT NULL,
	created_at TEXT NOT NULL,
	FOREIGN KEY(ticket_id) REFERENCES tickets (id)
)
-- next
CREATE INDEX ix_inbox_ticket_id ON inbox (ticket_id)
-- next
CREATE TABLE agent_log_entries (
	id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
	session_id TEXT NOT NULL,
	entry_type TEXT NOT NULL,
	content TEXT NOT NULL,
	raw_content TEXT,
	tool_name TEXT,
	tool_params TEXT,
	exit_code INTEGER,
	timestamp TEXT NOT NULL,
	created_at TEXT DEFAULT CURRENT_TIMESTAMP NOT NULL,
	v INTEGER DEFAULT 1 NOT NULL,
	seq INTEGER NOT NULL,
	phase TEXT,
	tool_use_id TEXT,
	fence INTEGER,
	body TEXT,
	meta TEXT,
	prev_hash TEXT NOT NULL,
	hash TEXT NOT NULL,
	CONSTRAINT ux_agent_log_entries_seq UNIQUE (session_id, seq),
	FOREIGN KEY(session_id) REFERENCES agent_sessions (session_id)
)
-- next
CREATE INDEX idx_agent_log_entries_session ON agent_log_entries (session_id)
-- next
INSERT INTO ledger_head (id, seq, hash) VALUES (1, -1, '0000000000000000000000000000000000000000000000000000000000000000')
-- next
CREATE TRIGGER agent_log_entries_frozen BEFORE UPDATE OF id, session_id, entry_type, raw_content, tool_name, tool_params, exit_code, timestamp, created_at, v, seq, phase, tool_use_id, fence, body, meta, prev_hash, hash ON agent_log_entries BEGIN SELECT RAISE(ABORT, 'the journal is append-only'); END
-- next
CREATE TRIGGER agent_log_entries_kept BEFORE DELETE ON agent_log_entries WHEN NOT EXISTS (SELECT 1 FROM ledger WHERE kind = 'tombstone' AND session_id = OLD.session_id) BEGIN SELECT RAISE(ABORT, 'the journal is append-only'); END
-- next
CREATE TRIGGER agent_log_entries_anchor AFTER INSERT ON agent_log_entries BEGIN UPDATE agent_sessions SET head_seq = NEW.seq, head_hash = NEW.hash WHERE session_id = NEW.session_id AND head_seq < NEW.seq; END
-- next
CREATE TRIGGER ledger_frozen BEFORE UPDATE ON ledger BEGIN SELECT RAISE(ABORT, 'the journal is append-only'); END
-- next
CREATE TRIGGER ledger_kept BEFORE DELETE ON ledger BEGIN SELECT RAISE(ABORT, 'the journal is append-only'); END
-- next
CREATE TRIGGER ledger_anchor AFTER INSERT ON ledger BEGIN UPDATE ledger_head SET seq = NEW.seq, hash = NEW.hash WHERE id = 1; END
