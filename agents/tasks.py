"""Celery's way to the worker, and what a worker does when it starts."""

from functools import partial

from celery import shared_task
from celery.signals import worker_process_init, worker_ready
from celery.worker.consumer import Consumer
from django.db import connections

from agents import registry, watch, worker  # noqa: F401  (the watch connects itself to the worker's signals)
from agents.heartbeat import heart
from agents.patience import until_answered
from workflows import broker, outputs, transitions
from workflows.models import Agent
from workflows.plans.schema import Schema


@shared_task(name=broker.WORK, ignore_result=True)
def work(queue: str, step_id: int | None = None) -> None:
    """A doorbell."""
    worker.work(queue, step_id)


@worker_process_init.connect
def let_children_end_themselves(**_: object) -> None:
    """In the prefork pool a child may end itself as the last resort against a hanging call, and calls be interrupted."""
    heart.may_end_process = True
    worker.let_calls_be_interrupted()


@worker_ready.connect
def announce_agents(sender: Consumer, **_: object) -> None:
    """Write the agents whose queues this worker consumes into the store, for those who hold no agent code."""
    queues = set(sender.app.amqp.queues.consume_from)
    try:
        for agent in registry.all_agents():
            if agent.queue in queues:
                until_answered(partial(transitions.announce, row_of(agent)))
    finally:
        connections.close_all()  # children forked from now on must not share this process's connection


def row_of(agent: registry.Agent) -> Agent:
    """What the store is told of an agent."""
    rate_count, rate_period = agent.rate or (None, None)
    return Agent(
        name=agent.name,
        queue=agent.queue,
        operations=sorted(agent.operations),
        outputs=_outputs_of(agent),
        honours_keys=agent.honours_keys,
        closes_keys=agent.closes_keys,
        lands_within=agent.lands_within,
        at_once=agent.at_once,
        rate_count=rate_count,
        rate_period=rate_period,
        runbook=agent.runbook,
    )


def _outputs_of(agent: registry.Agent) -> dict[str, Schema]:
    promised = {name: operation.output for name, operation in agent.operations.items() if operation.output is not None}
    schemas = {name: outputs.schema_of(output) for name, output in promised.items()}
    return {name: schema for name, schema in schemas.items() if schema is not None}
