-- Completes a forward step (no item of a fan-out) and hands over: releases the steps that waited for it, claims the first of them when it is now
-- ready, and closes the job when this was its last open step. The job is locked first; every decision is made on the fresh
-- version of rows that this statement locks or updates, so it is safe as a statement of its own under READ COMMITTED.
-- The rows are found by their ids alone, and what else must hold stands where no partial index offers itself for it: a
-- token says that the step is Running (step_is_sound), the job's state is looked at once it is locked.
-- No row comes back when the fence does not hold, or the job is not an ordinary running one (then transitions decides).
-- Result: one row; `next_*` is the step handed over, or null; `to_ring` the [id, queue] of other steps that became ready;
-- `attend`: the scheduler has to look at the job, since it holds a gate that may open now, or closes this job itself.
WITH t AS MATERIALIZED (SELECT sag_now() AS now),
locked AS (
    SELECT job.id, job.seq, job.state, job.paused_at, job.stopping_at, job.open_steps = 1 AND NOT job.hooked AS ends
    FROM sag_workflows_job job
    WHERE job.id = %(job)s
    FOR NO KEY UPDATE
),
done AS (
    UPDATE sag_workflows_step s
    SET state = 'Completed', result = %(result)s, finished_at = t.now, released_at = t.now,
        token = NULL, complete_by = NULL, deadline = NULL, error_kind = '', error_code = '', error_message = '',
        version = locked.seq + 1
    FROM locked, t
    WHERE s.id = %(step)s AND s.job_id = locked.id AND s.attempt = %(attempt)s AND s.token = %(token)s
      AND locked.state = 'Running' AND locked.stopping_at IS NULL
    RETURNING s.id, s.name, s.attempt, s.releases
),
released AS (
    UPDATE sag_workflows_step s
    SET waiting_for = s.waiting_for - 1, run_after = GREATEST(s.run_after, t.now),
        ring_after = GREATEST(s.run_after, t.now + %(ring_old)s), queue_by = t.now + s.queue_timeout,
        (state, attempt, token, worker, complete_by, deadline, heartbeat_at, started_at, version) = (
            SELECT CASE WHEN taken THEN 'Running' ELSE s.state END,
                   CASE WHEN taken THEN s.attempt + 1 ELSE s.attempt END,
                   CASE WHEN taken THEN %(next_token)s::uuid END,
                   CASE WHEN taken THEN %(worker)s ELSE s.worker END,
                   CASE WHEN taken THEN t.now + LEAST(%(lease)s, s.timeout) END,
                   CASE WHEN taken THEN t.now + s.timeout END,
                   CASE WHEN taken THEN t.now END,
                   CASE WHEN taken THEN t.now END,
                   CASE WHEN taken THEN locked.seq + 2 ELSE s.version END
            FROM (SELECT {hand_over} AS taken OFFSET 0) AS decision
        )
    FROM done, locked, t
    WHERE s.job_id = locked.id AND s.seq = ANY(done.releases) AND s.state = 'NotStarted'
    RETURNING s.*
),
handed AS (SELECT * FROM released WHERE state = 'Running'),
moved AS (
    UPDATE sag_workflows_job job
    SET open_steps = job.open_steps - 1,
        seq = locked.seq + 1 + (SELECT count(*) FROM handed) + (CASE WHEN locked.ends THEN 1 ELSE 0 END),
        state = CASE WHEN locked.ends THEN 'Completed' ELSE job.state END,
        paused_at = CASE WHEN locked.ends THEN NULL ELSE job.paused_at END,
        finished_at = CASE WHEN locked.ends THEN t.now END
    FROM locked, done, t
    WHERE job.id = locked.id
    RETURNING job.state, job.open_steps
),
attempt_ended AS (
    UPDATE sag_workflows_attempt a
    SET outcome = 'completed', finished_at = t.now, input = %(input)s
    FROM done, t
    WHERE a.step_id = done.id AND a.number = done.attempt
),
attempt_begun AS (
    INSERT INTO sag_workflows_attempt (step_id, number, token, worker, started_at)
    SELECT handed.id, handed.attempt, handed.token, handed.worker, t.now FROM handed, t
),
event AS (
    INSERT INTO sag_workflows_event (job_id, seq, kind, step, attempt, actor, at)
    SELECT locked.id, locked.seq + 1, 'step.completed', done.name, done.attempt, 'agent', t.now
    FROM locked, done, t
    UNION ALL
    SELECT locked.id, locked.seq + 2, 'step.claimed', handed.name, handed.attempt, 'agent', t.now
    FROM locked, handed, t
    UNION ALL
    SELECT locked.id, locked.seq + 2, 'job.completed', '', NULL, 'scheduler', t.now
    FROM locked, moved, t WHERE moved.state = 'Completed'
)
SELECT moved.state AS job_state, handed.id AS next_id, handed.place, handed.name, handed.operation, handed.queue, handed.attempt,
       handed.token, handed.idempotency_key, EXTRACT(epoch FROM handed.timeout)::float8 AS timeout,
       (SELECT jsonb_agg(jsonb_build_array(id, queue)) FROM released
        WHERE state = 'NotStarted' AND waiting_for = 0 AND NOT held) AS to_ring,
       (moved.open_steps = 0 AND moved.state = 'Running')
       OR EXISTS (SELECT FROM released WHERE gated AND waiting_for = 0) AS attend
FROM moved LEFT JOIN handed ON true
