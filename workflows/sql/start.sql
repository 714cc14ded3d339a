-- Opens a job: the job, all its steps and its first event, in one statement and one commit.
-- No row comes back when this client already has a job of this workflow under this key (index job_once_per_key).
-- Result: one row for each step that waits for no other: step_id, queue, gated, and when the job was opened.
WITH clock AS MATERIALIZED (SELECT sag_now() AS now),
job AS (
    INSERT INTO sag_workflows_job (id, client_id, key, workflow, version, plan, input, open_steps, seq, created_at, time_limit,
                                   deadline, hooked, parent_step_id)
    SELECT %(job)s, %(client)s, %(key)s, %(workflow)s, %(version)s, %(plan)s, %(input)s, %(count)s, 1, clock.now,
           %(time_limit)s, CASE WHEN NOT %(own_limit)s THEN clock.now + %(time_limit)s END, %(hooked)s, %(parent_step)s
    FROM clock
    ON CONFLICT DO NOTHING
    RETURNING id
),
step AS (
    INSERT INTO sag_workflows_step (job_id, seq, place, name, kind, operation, agent, queue, idempotency_key, waiting_for,
                                    releases, held, gated, limited, timeout, queue_timeout, attempts_allowed, run_after,
                                    ring_after, queue_by)
    SELECT job.id, plan.seq, plan.place, plan.name, plan.kind, plan.operation, plan.agent, COALESCE(agent.queue, %(queue)s),
           job.id || ':' || plan.name, plan.waiting_for, plan.releases, plan.gated, plan.gated,
           agent.at_once IS NOT NULL OR agent.rate_count IS NOT NULL, make_interval(secs => plan.timeout),
           make_interval(secs => plan.queue_timeout), plan.attempts, GREATEST(clock.now, %(start_at)s::timestamptz),
           GREATEST(clock.now + %(ring_old)s, %(start_at)s::timestamptz),
           GREATEST(clock.now, %(start_at)s::timestamptz) + make_interval(secs => plan.queue_timeout)
    FROM job, clock, jsonb_to_recordset(%(steps)s) AS plan (
        seq int, place int, name text, kind text, operation text, agent text, waiting_for int, releases int[], gated bool,
        timeout float8, queue_timeout float8, attempts int)
    LEFT JOIN sag_workflows_agent agent ON agent.name = plan.agent
    RETURNING id, queue, waiting_for, gated
),
event AS (
    INSERT INTO sag_workflows_event (job_id, seq, kind, actor, at)
    SELECT job.id, 1, 'job.opened', %(actor)s, clock.now FROM job, clock
)
SELECT step.id AS step_id, step.queue, step.gated, clock.now AS opened_at FROM step, clock WHERE step.waiting_for = 0
