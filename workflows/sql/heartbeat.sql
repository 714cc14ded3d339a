-- Extends the leases of all running steps of one worker process. Takes no job lock: it changes nothing but times, each row
-- only while its own token still holds it, forward only, and never past the deadline. A token says that the step is
-- Running (step_is_sound).
-- Result: the tokens that are still held.
UPDATE sag_workflows_step s
SET complete_by = GREATEST(s.complete_by, LEAST(sag_now() + %(lease)s, s.deadline)), heartbeat_at = sag_now()
FROM unnest(%(steps)s::bigint[], %(tokens)s::uuid[]) AS mine (id, token)
WHERE s.id = mine.id AND s.token = mine.token
RETURNING s.token
