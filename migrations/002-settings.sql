-- 002: settings an operator changes while the server runs and a restart must keep.
CREATE TABLE settings (
    name    TEXT    PRIMARY KEY,      -- 'frozen'
    value   INTEGER NOT NULL,
    receipt INTEGER NOT NULL REFERENCES receipts (id)
) STRICT, WITHOUT ROWID;
