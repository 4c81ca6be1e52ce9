-- 001: receipts and what they rest on. Forward only; runs inside one transaction that also sets user_version.

-- Every durable fact. hash = SHA-256(hash of row id-1, canonical bytes of this row); see controller/store/receipts.h.
CREATE TABLE receipts (
    id         INTEGER PRIMARY KEY,
    at_us      INTEGER NOT NULL,
    kind       TEXT    NOT NULL,
    reason     TEXT    NOT NULL,
    request    INTEGER NOT NULL,
    rollout    INTEGER NOT NULL,
    epoch      INTEGER NOT NULL,
    contract   INTEGER NOT NULL,          -- 0 exact, 1 approximate, as requested
    published  INTEGER NOT NULL,          -- as published
    layer      INTEGER NOT NULL,          -- -1: not about one; alike for the next three
    kv_head    INTEGER NOT NULL,
    q_head     INTEGER NOT NULL,
    position   INTEGER NOT NULL,
    bytes      INTEGER NOT NULL,
    rows       INTEGER NOT NULL,
    rows_total INTEGER NOT NULL,
    tokens     INTEGER NOT NULL,
    value      REAL,                      -- NULL: not a number
    digest     BLOB    NOT NULL,
    tenant     TEXT    NOT NULL,
    session    TEXT    NOT NULL,
    detail     TEXT    NOT NULL,
    hash       BLOB    NOT NULL CHECK (length(hash) = 32)
) STRICT;
CREATE INDEX receipts_request ON receipts (request, id) WHERE request <> 0;
CREATE INDEX receipts_rollout ON receipts (rollout, id) WHERE rollout <> 0 AND request = 0;
CREATE INDEX receipts_reason ON receipts (reason, id) WHERE reason <> 'OK';
CREATE INDEX receipts_kind ON receipts (kind, id) WHERE kind NOT IN ('REQUEST', 'PUBLICATION', 'TRANSFER');

CREATE TABLE manifests (
    digest     BLOB    PRIMARY KEY CHECK (length(digest) = 32),
    bytes      BLOB    NOT NULL,          -- canonical; the digest is taken over them
    created_us INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- The one mutable table: where each rollout stands. The last row of transitions must say the same.
CREATE TABLE rollouts (
    id             INTEGER PRIMARY KEY,
    name           TEXT    NOT NULL,
    manifest       BLOB    NOT NULL REFERENCES manifests (digest),
    stage          TEXT    NOT NULL,
    step           INTEGER NOT NULL,
    fraction       REAL    NOT NULL,
    paused         INTEGER NOT NULL,
    live           INTEGER NOT NULL,
    waited         INTEGER NOT NULL,
    version        INTEGER NOT NULL,
    epoch          INTEGER NOT NULL,
    created_us     INTEGER NOT NULL,
    stage_since_us INTEGER NOT NULL,
    ended_us       INTEGER NOT NULL
) STRICT;
CREATE UNIQUE INDEX rollouts_one_live ON rollouts (live) WHERE live = 1;

CREATE TABLE transitions (
    receipt    INTEGER PRIMARY KEY REFERENCES receipts (id),
    rollout    INTEGER NOT NULL REFERENCES rollouts (id),
    at_us      INTEGER NOT NULL,
    from_stage TEXT    NOT NULL,
    to_stage   TEXT    NOT NULL,
    fraction   REAL    NOT NULL,
    epoch      INTEGER NOT NULL UNIQUE,
    reason     TEXT    NOT NULL,
    detail     TEXT    NOT NULL,
    actor      TEXT    NOT NULL
) STRICT;
CREATE INDEX transitions_rollout ON transitions (rollout, receipt);

CREATE TABLE gate_evaluations (
    id        INTEGER PRIMARY KEY,
    receipt   INTEGER NOT NULL REFERENCES receipts (id),
    rollout   INTEGER NOT NULL REFERENCES rollouts (id),
    at_us     INTEGER NOT NULL,
    stage     TEXT    NOT NULL,
    epoch     INTEGER NOT NULL,
    metric    TEXT    NOT NULL,
    verdict   TEXT    NOT NULL,
    judged    INTEGER NOT NULL,
    value     REAL,
    lower     REAL,
    upper     REAL,
    threshold REAL    NOT NULL,
    n         INTEGER NOT NULL,
    min_n     INTEGER NOT NULL,
    detail    TEXT    NOT NULL
) STRICT;
CREATE INDEX gate_evaluations_rollout ON gate_evaluations (rollout, id);

CREATE TABLE policies (
    kind       TEXT    NOT NULL,
    version    TEXT    NOT NULL,          -- hex SHA-256 of the source
    name       TEXT    NOT NULL,
    source     TEXT    NOT NULL,
    created_us INTEGER NOT NULL,
    PRIMARY KEY (kind, version)
) STRICT, WITHOUT ROWID;
CREATE TABLE policy_activations (
    receipt INTEGER PRIMARY KEY REFERENCES receipts (id),
    kind    TEXT    NOT NULL,
    version TEXT    NOT NULL,
    at_us   INTEGER NOT NULL,
    actor   TEXT    NOT NULL,
    FOREIGN KEY (kind, version) REFERENCES policies (kind, version)
) STRICT;

CREATE TABLE decisions (
    receipt INTEGER PRIMARY KEY REFERENCES receipts (id),
    at_us   INTEGER NOT NULL,
    kind    TEXT    NOT NULL,
    rollout INTEGER NOT NULL,
    epoch   INTEGER NOT NULL,
    version TEXT    NOT NULL,
    action  TEXT    NOT NULL,
    reason  TEXT    NOT NULL,
    status  TEXT    NOT NULL              -- OK, or the policy's fault
) STRICT;

CREATE VIEW fallbacks AS SELECT * FROM receipts WHERE kind = 'FALLBACK';
CREATE VIEW failures AS SELECT * FROM receipts
    WHERE reason <> 'OK' AND kind IN ('FAILURE', 'ROLLBACK', 'FALLBACK', 'TRANSITION', 'SUPERSEDED', 'GATE', 'POLICY_FAULT', 'STORE');

-- Append-only: what is written stays as it was.
CREATE TRIGGER receipts_no_update BEFORE UPDATE ON receipts BEGIN SELECT raise(ABORT, 'receipts are append-only'); END;
CREATE TRIGGER receipts_no_delete BEFORE DELETE ON receipts BEGIN SELECT raise(ABORT, 'receipts are append-only'); END;
CREATE TRIGGER manifests_no_update BEFORE UPDATE ON manifests BEGIN SELECT raise(ABORT, 'manifests are immutable'); END;
CREATE TRIGGER manifests_no_delete BEFORE DELETE ON manifests BEGIN SELECT raise(ABORT, 'manifests are immutable'); END;
CREATE TRIGGER transitions_no_update BEFORE UPDATE ON transitions BEGIN SELECT raise(ABORT, 'transitions are append-only'); END;
CREATE TRIGGER transitions_no_delete BEFORE DELETE ON transitions BEGIN SELECT raise(ABORT, 'transitions are append-only'); END;
CREATE TRIGGER gate_evaluations_no_update BEFORE UPDATE ON gate_evaluations BEGIN SELECT raise(ABORT, 'gate evaluations are append-only'); END;
CREATE TRIGGER gate_evaluations_no_delete BEFORE DELETE ON gate_evaluations BEGIN SELECT raise(ABORT, 'gate evaluations are append-only'); END;
CREATE TRIGGER decisions_no_update BEFORE UPDATE ON decisions BEGIN SELECT raise(ABORT, 'decisions are append-only'); END;
CREATE TRIGGER decisions_no_delete BEFORE DELETE ON decisions BEGIN SELECT raise(ABORT, 'decisions are append-only'); END;
CREATE TRIGGER policies_no_update BEFORE UPDATE ON policies BEGIN SELECT raise(ABORT, 'policy versions are immutable'); END;
CREATE TRIGGER rollouts_no_delete BEFORE DELETE ON rollouts BEGIN SELECT raise(ABORT, 'rollouts are kept'); END;
