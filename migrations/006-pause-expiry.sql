-- 006: pauses that lasted longer than they may. expired_us > 0: nobody came for it; its state is RESUMED, so that the session may pause again, and no result is taken for it.
ALTER TABLE pauses ADD COLUMN expired_us INTEGER NOT NULL DEFAULT 0;
