"""What must hold at the end of every test, whatever it did: the vendors' ledger against the store and the API."""

from collections import Counter
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any

import httpx2

from tests.acceptance.system import RunningSystem
from tests.waiting import wait_until

SERVICES = ("flights", "hotels", "cars")
ENDS = ("job.completed", "job.compensated", "job.failed")
NOT_YET = ("pending", "late")
REFUSED_AT_ONCE = ("down", "busy")  # asked for again within one attempt, since nothing was done


def check(system: RunningSystem, jobs: list[str]) -> None:
    """All rules over these jobs, once no call is on its way any more, and none is at work: what was in doubt is asked about
    once more after a job's end.
    """
    wait_until(lambda: not on_its_way(system.ledger()), 40, what="no call is on its way")
    wait_until(lambda: not at_work(system, jobs), 40, what="every attempt has ended")
    ledger = system.ledger()
    calls_belong_to_recorded_steps(system, ledger)
    for document in documents_of(system, jobs):
        nothing_live_that_should_not_be(document, ledger)
    every_job_ended_once(system, jobs)
    attempts_are_in_order(system, jobs)
    calls_are_attempts(system, jobs, ledger)
    counters_agree_with_rows(system, jobs)


def at_work(system: RunningSystem, jobs: list[str]) -> list[dict[str, Any]]:
    query = """SELECT step.name, a.number FROM sag_workflows_attempt a JOIN sag_workflows_step step ON step.id = a.step_id
               WHERE step.job_id = ANY(%s::uuid[]) AND a.finished_at IS NULL"""
    return system.sql(query, jobs)


def documents_of(system: RunningSystem, jobs: list[str]) -> list[dict[str, Any]]:
    """The jobs as the API shows them, out of its pages."""
    found: list[dict[str, Any]] = []
    with system.api as api:
        page = {"next": "/api/v1/jobs?limit=200"}
        while page["next"] and len(found) < len(set(jobs)):
            page = _patiently(partial(api.get, system.base_url + page["next"])).json()
            found += [job for job in page["results"] if job["id"] in jobs]
    assert {job["id"] for job in found} == set(jobs)
    return found


def _patiently(ask: Callable[[], httpx2.Response]) -> httpx2.Response:
    """As a client does that is told to come again: each process of the web finds a restarted database by itself."""
    answers: list[httpx2.Response] = []

    def answered() -> bool:
        answers.append(ask())
        return answers[-1].status_code != 503

    wait_until(answered, 30, what="the site answers")
    return answers[-1].raise_for_status()


def on_its_way(ledger: dict[str, Any]) -> list[dict[str, Any]]:
    """Calls that a vendor has not dealt with yet."""
    return [call for call in ledger["calls"] if call["outcome"] in NOT_YET]


def nothing_live_that_should_not_be(job: dict[str, Any], ledger: dict[str, Any]) -> None:
    """A completed trip holds one reservation of each; any other holds none but those it names to a person."""
    live = [it for it in ledger["reservations"] if it["live"] and it["key"].startswith(job["id"])]
    by_service = Counter(it["service"] for it in live)
    if job["state"] == "Completed":
        assert by_service == dict.fromkeys(SERVICES, 1), f"{job['id']} completed with {by_service}"
        return
    sentences = " ".join(job["needs_person"])
    unnamed = [it for it in live if it["reference"] not in sentences and it["key"] not in sentences]
    assert not unnamed, f"{job['id']} is {job['state']}, nobody is told of {unnamed}; told: {sentences!r}"


def calls_belong_to_recorded_steps(system: RunningSystem, ledger: dict[str, Any]) -> None:
    """Every call carries the key of a forward step: its own, or of the one that it cancels."""
    rows = system.sql("SELECT idempotency_key AS key FROM sag_workflows_step WHERE role = 'forward'")
    keys = {row["key"] for row in rows}
    strangers = [call for call in ledger["calls"] if call["key"] not in keys]
    assert not strangers, f"calls of no recorded step: {strangers}"


def every_job_ended_once(system: RunningSystem, jobs: list[str]) -> None:
    """Numbered without a gap; one terminal event, and one more for each time that a person opened the job again."""
    query = """SELECT job.id::text AS id, job.state, job.seq, array_agg(event.kind ORDER BY event.seq) AS kinds,
                      array_agg(event.seq ORDER BY event.seq) AS numbers
               FROM sag_workflows_job job JOIN sag_workflows_event event ON event.job_id = job.id
               WHERE job.id = ANY(%s::uuid[]) GROUP BY job.id"""
    found = system.sql(query, jobs)
    assert len(found) == len(set(jobs))
    for job in found:
        assert job["numbers"] == list(range(1, job["seq"] + 1)), f"{job['id']}: events {job['numbers']}"
        ends = [kind for kind in job["kinds"] if kind in ENDS]
        assert len(ends) == 1 + job["kinds"].count("job.reopened"), f"{job['id']}: {job['kinds']}"
        assert ends[-1] == f"job.{job['state'].lower()}", f"{job['id']} is {job['state']}: {job['kinds']}"


def attempts_are_in_order(system: RunningSystem, jobs: list[str]) -> None:
    """Numbered from 1, one after the other, each ended; no more than allowed and one probe, unless a person granted more."""
    query = """SELECT step.job_id::text AS job, step.name, step.attempt, step.charged, step.attempts_allowed AS allowed,
                      array_agg(a.number ORDER BY a.number) AS numbers,
                      array_agg(a.started_at ORDER BY a.number) AS started,
                      array_agg(a.finished_at ORDER BY a.number) AS finished,
                      EXISTS (SELECT 1 FROM sag_workflows_event e WHERE e.job_id = step.job_id AND e.step = step.name
                              AND e.kind = 'step.retried' AND e.actor NOT IN ('supervisor')) AS granted
               FROM sag_workflows_step step JOIN sag_workflows_attempt a ON a.step_id = step.id
               WHERE step.job_id = ANY(%s::uuid[]) GROUP BY step.id"""
    for step in system.sql(query, jobs):
        what = f"{step['name']} of {step['job']}"
        assert step["numbers"] == list(range(1, step["attempt"] + 1)), f"{what}: attempts {step['numbers']}"
        assert None not in step["finished"], f"{what} has an attempt without an end"
        spans = zip(step["started"], step["finished"], strict=True)
        overlapping = [(before, after) for before, after in pairwise(spans) if after[0] < before[1]]
        assert not overlapping, f"{what}: attempts overlap: {overlapping}"
        if not step["granted"]:
            assert step["attempt"] <= step["allowed"] + 1, f"{what}: {step['attempt']} attempts of {step['allowed']}"
            assert step["charged"] <= step["allowed"] + 1, f"{what}: {step['charged']} charged"


def calls_are_attempts(system: RunningSystem, jobs: list[str], ledger: dict[str, Any]) -> None:
    """No step asks its vendor more often than it has attempts: once each, after at most one probe."""
    made = Counter(
        (call["key"], call["operation"]) for call in ledger["calls"] if call["outcome"] not in REFUSED_AT_ONCE
    )
    query = """SELECT original.idempotency_key AS key, original.attempt AS attempts,
                      COALESCE((SELECT sum(undo.attempt) FROM sag_workflows_step undo WHERE undo.undoes_id = original.id), 0)
                          AS undo_attempts
               FROM sag_workflows_step original WHERE original.role = 'forward' AND original.job_id = ANY(%s::uuid[])"""
    for step in system.sql(query, jobs):
        allowed = {"reserve": step["attempts"], "find": step["attempts"], "cancel": step["undo_attempts"]}
        for operation, attempts in allowed.items():
            calls = made[step["key"], operation]
            assert calls <= attempts, f"{step['key']}: {calls} calls {operation} in {attempts} attempts"


def counters_agree_with_rows(system: RunningSystem, jobs: list[str]) -> None:
    """What the engine counts as it goes along is what can be counted afterwards."""
    query = """SELECT job.id, job.open_steps FROM sag_workflows_job job
               WHERE job.id = ANY(%s::uuid[]) AND job.open_steps <>
                   (SELECT count(*) FROM sag_workflows_step step
                    WHERE step.job_id = job.id AND step.role = 'forward' AND step.parent_id IS NULL
                      AND NOT step.superseded AND step.state NOT IN ('Completed', 'Skipped')
                      AND step.remedy NOT IN ('ignore', 'otherwise'))"""
    wrong = system.sql(query, jobs)
    assert not wrong, f"counters of open steps are wrong: {wrong}"
    running = "SELECT name FROM sag_workflows_step WHERE job_id = ANY(%s::uuid[]) AND state = 'Running'"
    assert not system.sql(running, jobs), "a step of an ended job still runs"
