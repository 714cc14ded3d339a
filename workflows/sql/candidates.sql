-- The steps of one queue that may start now, oldest first, without a lock (index step_ready), but none whose agent or key
-- was just found to be at its limit.
SELECT s.id, s.limited
FROM sag_workflows_step s JOIN sag_workflows_job job ON job.id = s.job_id
WHERE s.queue = %(queue)s AND NOT (s.limited AND (s.agent = ANY(%(full)s) OR s.limit_key = ANY(%(full)s))) AND {ready}
ORDER BY s.run_after, s.id
LIMIT %(limit)s
