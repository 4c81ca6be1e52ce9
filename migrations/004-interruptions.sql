-- 004: requests that wait for somebody outside, and the results they were given, each applied once. controller/store/store_pauses.h says which state follows which.
CREATE TABLE pauses (
    tenant         TEXT    NOT NULL,
    session        TEXT    NOT NULL,
    epoch          INTEGER NOT NULL,          -- of the pause; the resume's is the next
    receipt        INTEGER NOT NULL REFERENCES receipts (id),
    call_id        TEXT    NOT NULL,          -- '': nobody was called; it resumes without a result
    state          TEXT    NOT NULL CHECK (state IN ('PAUSED', 'RESUMED')),
    manifest       TEXT    NOT NULL,          -- JSON: what a continuation needs besides its tokens
    tokens         BLOB    NOT NULL,          -- int32, little-endian: all up to the pause
    paused_us      INTEGER NOT NULL,
    result_state   TEXT    NOT NULL,
    result_id      TEXT    NOT NULL,
    result_digest  BLOB    NOT NULL CHECK (length(result_digest) = 32),
    result_tokens  BLOB    NOT NULL,          -- committed together with RESULT_APPEND_COMMITTED
    PRIMARY KEY (tenant, session, epoch)
) STRICT;
CREATE UNIQUE INDEX pauses_one_open ON pauses (tenant, session) WHERE state = 'PAUSED';
CREATE TRIGGER pauses_no_delete BEFORE DELETE ON pauses BEGIN SELECT raise(ABORT, 'pauses are kept'); END;
CREATE TRIGGER pauses_result_once BEFORE UPDATE ON pauses
    WHEN OLD.result_state IN ('RESULT_APPEND_COMMITTED', 'APPLIED') AND
         (NEW.result_id <> OLD.result_id OR NEW.result_digest <> OLD.result_digest OR NEW.result_tokens <> OLD.result_tokens OR NEW.result_state NOT IN ('RESULT_APPEND_COMMITTED', 'APPLIED'))
    BEGIN SELECT raise(ABORT, 'a committed result stays as it is'); END;
