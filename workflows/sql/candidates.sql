-- The steps of one queue that may start now, oldest first, without a lock (index step_ready).
SELECT s.id
FROM sag_workflows_step s JOIN sag_workflows_job job ON job.id = s.job_id
WHERE s.queue = %(queue)s AND {ready}
ORDER BY s.run_after, s.id
LIMIT %(limit)s
