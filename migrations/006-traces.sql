-- 006: requests are found by the trace they belong to: a REQUEST receipt's digest begins with it.
CREATE INDEX receipts_trace ON receipts (digest)
    WHERE kind = 'REQUEST' AND digest <> x'0000000000000000000000000000000000000000000000000000000000000000';
