-- Claims one step for an attempt. The job is locked first; every decision is made on the fresh version of the two rows
-- that this statement locks. No row comes back when the step may not start, or (with {skip_locked}) its job is locked. A
-- step whose agent or key has a limit is claimed only by who counted before, under the agent's lock ({unlimited}).
-- Result: one row, see transitions.Claimed. Of ten thousand items each would carry the job's whole input, and with it their
-- whole list: they go without.
WITH clock AS MATERIALIZED (SELECT sag_now() AS now),
locked AS (
    SELECT job.id, job.seq, job.state, job.paused_at, job.stopping_at, job.workflow, job.input, job.plan,
           job.scheduled_for
    FROM sag_workflows_job job
    WHERE job.id = (SELECT step.job_id FROM sag_workflows_step step WHERE step.id = %(step)s)
    FOR NO KEY UPDATE {skip_locked}
),
claimed AS (
    UPDATE sag_workflows_step s
    SET state = 'Running', attempt = s.attempt + 1, token = %(token)s, worker = %(worker)s,
        complete_by = clock.now + LEAST(%(lease)s, s.timeout), deadline = clock.now + s.timeout, heartbeat_at = clock.now,
        started_at = COALESCE(s.started_at, clock.now), version = locked.seq + 1
    FROM locked, clock
    WHERE s.id = %(step)s AND s.job_id = locked.id AND {unlimited} AND {ready}
    RETURNING s.id, s.job_id, s.place, s.name, s.index, s.item, s.role, s.undoes_id, s.operation, s.queue, s.attempt, s.token,
              s.worker, s.probe_only, s.idempotency_key, s.timeout, s.limit_key
),
numbered AS (
    UPDATE sag_workflows_job job SET seq = locked.seq + 1 FROM locked, claimed WHERE job.id = locked.id
),
attempt AS (
    INSERT INTO sag_workflows_attempt (step_id, number, token, worker, started_at)
    SELECT claimed.id, claimed.attempt, claimed.token, claimed.worker, clock.now FROM claimed, clock
),
event AS (
    INSERT INTO sag_workflows_event (job_id, seq, kind, step, attempt, actor, at)
    SELECT locked.id, locked.seq + 1, 'step.claimed', claimed.name || COALESCE(':' || claimed.index, ''), claimed.attempt,
           'agent', clock.now
    FROM locked, claimed, clock
)
SELECT claimed.id AS step_id, claimed.job_id, claimed.place, claimed.name, claimed.index, claimed.item, claimed.role,
       claimed.undoes_id, claimed.operation, claimed.queue, claimed.attempt, claimed.token, claimed.probe_only,
       claimed.idempotency_key, EXTRACT(epoch FROM claimed.timeout)::float8 AS timeout, locked.workflow, CASE WHEN claimed.index IS NULL THEN locked.input END AS given,
       locked.plan -> 'steps' AS plan, locked.scheduled_for,
       claimed.limit_key
FROM claimed, locked
