-- Completes an item of a fan-out and counts it off: the fan-out's row is updated in place, and where only so many items may
-- run at once the next one in the list is let go, unless the fan-out has failed meanwhile. The job is locked first, and no
-- other row decides anything here.
-- No row comes back when the fence does not hold, or the job is not an ordinary running one (then transitions decides).
-- Result: one row; `next_id`, `queue` of the item that was let go; `attend`: the scheduler has to look at the job, since
-- this was the last open item, or the one to be let go is not written yet (or since this statement began).
WITH clock AS MATERIALIZED (SELECT sag_now() AS now),
locked AS (
    SELECT job.id, job.seq, job.state, job.paused_at, job.stopping_at
    FROM sag_workflows_job job
    WHERE job.id = %(job)s
    FOR NO KEY UPDATE
),
done AS (
    UPDATE sag_workflows_step s
    SET state = 'Completed', result = %(result)s, finished_at = clock.now, released_at = clock.now,
        token = NULL, complete_by = NULL, deadline = NULL, error_kind = '', error_code = '', error_message = '',
        version = locked.seq + 1
    FROM locked, clock
    WHERE s.id = %(step)s AND s.job_id = locked.id AND s.attempt = %(attempt)s AND s.token = %(token)s
      AND locked.state = 'Running' AND locked.stopping_at IS NULL
    RETURNING s.id, s.name, s.index, s.attempt, s.parent_id
),
fan AS (
    UPDATE sag_workflows_step s
    SET items_open = s.items_open - 1, items_admitted = s.items_admitted + 1
    FROM done
    WHERE s.id = done.parent_id
    RETURNING s.id, s.state, s.items_open, s.items_admitted, s.items_total
),
admitted AS (
    UPDATE sag_workflows_step s
    SET held = false, run_after = GREATEST(s.run_after, clock.now),
        ring_after = GREATEST(s.run_after, clock.now + %(ring_old)s), queue_by = clock.now + s.queue_timeout
    FROM fan, locked, clock
    WHERE s.parent_id = fan.id AND s.index = fan.items_admitted - 1 AND s.state = 'NotStarted' AND s.held AND NOT s.gated
      AND fan.state = 'Running' AND locked.paused_at IS NULL
    RETURNING s.id, s.queue
),
numbered AS (
    UPDATE sag_workflows_job job SET seq = locked.seq + 1 FROM locked, done WHERE job.id = locked.id
),
attempt_ended AS (
    UPDATE sag_workflows_attempt a
    SET outcome = 'completed', finished_at = clock.now, input = %(input)s
    FROM done, clock
    WHERE a.step_id = done.id AND a.number = done.attempt
),
event AS (
    INSERT INTO sag_workflows_event (job_id, seq, kind, step, attempt, actor, at)
    SELECT locked.id, locked.seq + 1, 'step.completed', done.name || ':' || done.index, done.attempt, 'agent', clock.now
    FROM locked, done, clock
)
SELECT admitted.id AS next_id, admitted.queue,
       fan.items_open = 0 OR (fan.items_admitted <= fan.items_total AND admitted.id IS NULL) AS attend
FROM fan LEFT JOIN admitted ON true
