-- The steps of one queue that may start now, oldest first, without a lock (index step_ready), but none whose agent or key
-- was just found to be at its limit. Each job is looked up by its id (OFFSET 0 sees to that): few are asked for, and a
-- recheck is due in a job of any state, so that no statistics would lead the planner there.
SELECT s.id, s.limited
FROM sag_workflows_step s
CROSS JOIN LATERAL (
    SELECT state, paused_at, stopping_at FROM sag_workflows_job WHERE id = s.job_id OFFSET 0
) AS job
WHERE s.queue = %(queue)s AND NOT (s.limited AND (s.agent = ANY(%(full)s) OR s.limit_key = ANY(%(full)s))) AND {ready}
ORDER BY s.run_after, s.id
LIMIT %(limit)s
