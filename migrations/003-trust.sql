-- 003: the lives of policy versions, what their decisions were made of, tokens, who wrote and approved a rollout, sealed receipts.

-- Every state a version was in; the last row of (kind, version) is where it stands. controller/policy/policy_life.h draws them.
CREATE TABLE policy_states (
    id      INTEGER PRIMARY KEY,
    receipt INTEGER NOT NULL REFERENCES receipts (id),
    kind    TEXT    NOT NULL,
    version TEXT    NOT NULL,
    state   TEXT    NOT NULL,
    at_us   INTEGER NOT NULL,
    actor   TEXT    NOT NULL,
    detail  TEXT    NOT NULL,
    FOREIGN KEY (kind, version) REFERENCES policies (kind, version)
) STRICT;
CREATE INDEX policy_states_version ON policy_states (kind, version, id);
INSERT INTO policy_states (receipt, kind, version, state, at_us, actor, detail)
    SELECT a.receipt, a.kind, a.version, CASE WHEN a.receipt = (SELECT max(b.receipt) FROM policy_activations b WHERE b.kind = a.kind) THEN 'ACTIVE' ELSE 'RETIRED' END,
           a.at_us, a.actor, 'activated before lives were recorded' FROM policy_activations a ORDER BY a.receipt;

-- What a recorded release decision was asked, as JSON, so that another version can be asked the same.
CREATE TABLE decision_inputs (
    receipt INTEGER PRIMARY KEY REFERENCES receipts (id),
    input   TEXT    NOT NULL
) STRICT;

CREATE TABLE tokens (
    id         INTEGER PRIMARY KEY,
    name       TEXT    NOT NULL,
    sha256     BLOB    NOT NULL UNIQUE CHECK (length(sha256) = 32), -- the secret itself is shown once and kept nowhere
    rights     TEXT    NOT NULL,      -- names, separated by blanks
    tenant     TEXT    NOT NULL,
    created_us INTEGER NOT NULL,
    expires_us INTEGER NOT NULL,      -- 0: never
    revoked_us INTEGER NOT NULL,      -- 0: not revoked
    creator    TEXT    NOT NULL,
    receipt    INTEGER NOT NULL REFERENCES receipts (id)
) STRICT;
CREATE UNIQUE INDEX tokens_one_name ON tokens (name) WHERE revoked_us = 0;

ALTER TABLE rollouts ADD COLUMN author TEXT NOT NULL DEFAULT '';
ALTER TABLE rollouts ADD COLUMN approver TEXT NOT NULL DEFAULT '';

-- A request's receipts under one root: RFC 6962's tree over their hashes in the order of their ids, made when its REQUEST row is written.
CREATE TABLE request_roots (
    receipt INTEGER PRIMARY KEY,      -- the REQUEST row, the last leaf
    request INTEGER NOT NULL,
    leaves  INTEGER NOT NULL,
    root    BLOB    NOT NULL CHECK (length(root) = 32)
) STRICT;

-- Receipts up to last were removed by retention; hash is the chain's hash there, which a signed head covers.
CREATE TABLE seals (
    last    INTEGER PRIMARY KEY,
    hash    BLOB    NOT NULL CHECK (length(hash) = 32),
    at_us   INTEGER NOT NULL,
    rows    INTEGER NOT NULL,
    receipt INTEGER NOT NULL
) STRICT;

CREATE TRIGGER policy_states_no_update BEFORE UPDATE ON policy_states BEGIN SELECT raise(ABORT, 'policy states are append-only'); END;
CREATE TRIGGER policy_states_no_delete BEFORE DELETE ON policy_states BEGIN SELECT raise(ABORT, 'policy states are append-only'); END;
CREATE TRIGGER decision_inputs_no_update BEFORE UPDATE ON decision_inputs BEGIN SELECT raise(ABORT, 'decision inputs are append-only'); END;
CREATE TRIGGER tokens_no_delete BEFORE DELETE ON tokens BEGIN SELECT raise(ABORT, 'tokens are kept'); END;
CREATE TRIGGER request_roots_no_update BEFORE UPDATE ON request_roots BEGIN SELECT raise(ABORT, 'roots are append-only'); END;
CREATE TRIGGER seals_no_delete BEFORE DELETE ON seals BEGIN SELECT raise(ABORT, 'seals are kept'); END;
