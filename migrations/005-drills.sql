-- 005: drills of a candidate, each with its receipt. They speak for a manifest, so a retry of the same one keeps them.
CREATE TABLE drills (
    receipt    INTEGER PRIMARY KEY REFERENCES receipts (id),
    rollout    INTEGER NOT NULL REFERENCES rollouts (id),
    manifest   BLOB    NOT NULL REFERENCES manifests (digest),
    name       TEXT    NOT NULL,          -- controller/drills.def
    at_us      INTEGER NOT NULL,
    seconds    REAL    NOT NULL,
    checks     INTEGER NOT NULL,
    violations INTEGER NOT NULL,
    actor      TEXT    NOT NULL,
    detail     TEXT    NOT NULL
) STRICT;
CREATE INDEX drills_manifest ON drills (manifest, name, receipt);
CREATE TRIGGER drills_no_update BEFORE UPDATE ON drills BEGIN SELECT raise(ABORT, 'drills are append-only'); END;
CREATE TRIGGER drills_no_delete BEFORE DELETE ON drills BEGIN SELECT raise(ABORT, 'drills are append-only'); END;
