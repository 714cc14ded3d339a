-- Writes the next items of a fan-out, under its job's lock: each takes what it has from the fan-out's own row. Those whose
-- turn has not come, and all that only the scheduler can begin (gated), are held.
-- Result: how many.
WITH clock AS MATERIALIZED (SELECT sag_now() AS now),
fan AS (
    UPDATE sag_workflows_step s SET items_made = s.items_made + jsonb_array_length(%(items)s)
    WHERE s.id = %(fan)s
    RETURNING s.*
),
written AS (
    INSERT INTO sag_workflows_step (job_id, seq, place, name, index, generation, kind, parent_id, operation, agent, queue,
                                    idempotency_key, releases, held, gated, limited, limit_key, timeout, queue_timeout,
                                    attempts_allowed, item, version, run_after, ring_after, queue_by)
    SELECT fan.job_id, %(seq)s + item.nth - 1, fan.place, fan.name, %(first)s + item.nth - 1, fan.generation, fan.kind, fan.id,
           fan.operation, fan.agent, fan.queue, fan.idempotency_key || ':' || (%(first)s + item.nth - 1), '{{}}',
           fan.kind <> 'call' OR %(first)s + item.nth - 1 >= fan.items_admitted OR job.paused_at IS NOT NULL,
           fan.kind <> 'call', fan.limited OR keys.list[item.nth] <> '', keys.list[item.nth], fan.timeout, fan.queue_timeout,
           fan.attempts_allowed, item.value, job.seq, clock.now, clock.now, clock.now + fan.queue_timeout
    FROM clock, fan JOIN sag_workflows_job job ON job.id = fan.job_id,
         (SELECT %(keys)s::text[] AS list) AS keys,
         jsonb_array_elements(%(items)s) WITH ORDINALITY AS item (value, nth)
    RETURNING id
)
SELECT count(*) AS items FROM written
