-- 007: requests are found by the trace they belong to: a REQUEST receipt's digest begins with it. A failed drill is a failure.
CREATE INDEX receipts_trace ON receipts (digest)
    WHERE kind = 'REQUEST' AND digest <> x'0000000000000000000000000000000000000000000000000000000000000000';
DROP VIEW failures;
CREATE VIEW failures AS SELECT * FROM receipts
    WHERE reason <> 'OK' AND kind IN ('FAILURE', 'ROLLBACK', 'FALLBACK', 'TRANSITION', 'SUPERSEDED', 'GATE', 'POLICY_FAULT', 'STORE', 'DRILL');
