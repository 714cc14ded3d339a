-- Extends the leases of all running steps of one worker process, and leaves word of how far each has come. Takes no job
-- lock: it changes nothing but times and that word, each row only while its own token still holds it, forward only, and
-- never past the deadline. A token says that the step is Running (step_is_sound).
-- Result: the tokens that are still held, and whether the job of each is stopping.
UPDATE sag_workflows_step s
SET complete_by = GREATEST(s.complete_by, LEAST(sag_now() + %(lease)s, s.deadline)), heartbeat_at = sag_now(),
    progress = COALESCE(mine.progress, s.progress)
FROM unnest(%(steps)s::bigint[], %(tokens)s::uuid[], %(progress)s::jsonb[]) AS mine (id, token, progress),
     sag_workflows_job job
WHERE s.id = mine.id AND s.token = mine.token AND job.id = s.job_id
RETURNING s.token, job.stopping_at IS NOT NULL AND s.role = 'forward' AS stopping
