-- 008: what nobody can ask for again is forgotten. A pause that was resumed or given up keeps its row, its call, its result's digest and length: the same result offered late gets the same answer. The text in its tokens goes.
DROP TRIGGER pauses_result_once;
CREATE TRIGGER pauses_result_once BEFORE UPDATE ON pauses
    WHEN OLD.result_state IN ('RESULT_APPEND_COMMITTED', 'APPLIED') AND
         (NEW.result_id <> OLD.result_id OR NEW.result_digest <> OLD.result_digest OR NEW.result_state NOT IN ('RESULT_APPEND_COMMITTED', 'APPLIED') OR
          (NEW.result_tokens <> OLD.result_tokens AND NOT (NEW.state = 'RESUMED' AND length(NEW.tokens) = 0 AND NEW.result_tokens = zeroblob(length(OLD.result_tokens)))))
    BEGIN SELECT raise(ABORT, 'a committed result stays as it is'); END;
UPDATE pauses SET tokens = x'', result_tokens = zeroblob(length(result_tokens)) WHERE state = 'RESUMED';
