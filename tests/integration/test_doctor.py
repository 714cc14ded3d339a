"""What `manage.py doctor` finds, and that each finding says what to do."""

import subprocess
import sys
from datetime import UTC, datetime, timedelta
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command
from django.db import transaction

from supervisor import doctor, escalation, leadership, needs, sweep
from supervisor.doctor import Finding, Grade
from supervisor.leadership import Duty
from supervisor.models import Incident, Sweep, Telling, Term
from tests import console_data as data
from tests.integration.engine import Engine
from tests.integration.outages import Delivery, outage_of_shop
from tests.integration.receivers import closed_port
from tests.integration.recurring import EACH_MINUTE, Diary
from workflows import history, transitions
from workflows.clock import now
from workflows.models import Agent, ClockOffset, Worker
from workflows.opening import new_job
from workflows.plans import registry

ROOT = Path(__file__).resolve().parents[2]


def worker_of(*queues: str, unseen: timedelta = timedelta(0), stopped: bool = False) -> None:
    present = now()
    transitions.note_worker(
        Worker(
            name="host/1/abc",
            host="host",
            pid=1,
            queues=list(queues),
            started_at=present,
            seen_at=present - unseen,
            stopped_at=present if stopped else None,
        ),
        ["queues", "seen_at", "stopped_at"],
    )


@pytest.fixture
def healthy(engine: Engine, settings: Any) -> Engine:
    """As it is while all roles run: swept just now, workers that offer whatever any plan names, and somebody is told."""
    settings.SAG_NOTIFY = ["ops@example.com"]
    for name in {name for names in doctor.standing.operations_without_worker().values() for name in names}:
        agent = name.partition(".")[0]
        known = Agent.objects.filter(pk=agent).first()
        offered = sorted({name, *(known.operations if known else [])})
        transitions.announce(Agent(name=agent, queue="agents", operations=offered))
    worker_of("agents", "depot")
    sweep.sweep()
    leadership.do(Duty.TICKS, lambda _: None)
    ClockOffset.objects.all().delete()
    return engine


def findings() -> dict[str, Finding]:
    return {finding.about: finding for finding in doctor.examine()}


def grade_of(about: str) -> Grade:
    finding = findings()[about]
    assert bool(finding.do) == (finding.grade != Grade.WELL)
    return finding.grade


def test_what_is_in_order_is_well_and_the_command_ends_well(healthy: Engine) -> None:
    out = StringIO()
    call_command("doctor", stdout=out, no_color=True)
    grades = {about: finding.grade for about, finding in findings().items()}
    assert grades == {**dict.fromkeys(grades, Grade.WELL), "durability": Grade.LOOK}  # the tests' server forgoes it
    assert out.getvalue().endswith("Healthy, with 1 to look at.\n")
    assert "PostgreSQL" in out.getvalue()


def test_what_is_ill_ends_the_command_with_1_and_a_line_of_what_to_do(healthy: Engine) -> None:
    Sweep.objects.update(finished_at=now() - timedelta(seconds=60))
    out = StringIO()
    with pytest.raises(SystemExit) as ended:
        call_command("doctor", stdout=out, no_color=True)
    assert ended.value.code == 1
    assert (
        "ill   sweeps      The last sweep of the supervisor ended 60 s ago. What gets stuck is not found."
        in out.getvalue()
    )
    assert "→ Start `manage.py up --supervisor`" in out.getvalue()
    assert out.getvalue().endswith("Not healthy: sweeps.\n")


def test_a_supervisor_that_never_swept_is_ill(healthy: Engine) -> None:
    Sweep.objects.all().delete()
    assert grade_of("sweeps") == Grade.ILL


def test_a_supervisor_that_only_observes_is_to_be_looked_at(healthy: Engine, settings: Any) -> None:
    settings.SAG = {"observe_only": True}
    sweep.sweep()
    finding = findings()["sweeps"]
    assert finding.grade == Grade.LOOK
    assert "only observes" in finding.said


def test_a_beat_that_asks_for_no_look_at_the_schedules_is_ill_although_none_is_due(healthy: Engine) -> None:
    Term.objects.filter(duty="ticks").update(done_at=now() - timedelta(seconds=60))
    finding = findings()["beat"]
    assert (finding.grade, finding.said) == (
        Grade.ILL,
        "The last look for due times of schedules ended 60 s ago.",
    )


def test_a_clock_that_a_test_has_moved_is_ill(healthy: Engine) -> None:
    healthy.ahead(3600)
    assert grade_of("clock") == Grade.ILL


def test_no_worker_on_a_queue_is_ill(healthy: Engine) -> None:
    worker_of("agents")
    finding = findings()["workers"]
    assert (finding.grade, finding.said) == (
        Grade.ILL,
        "None was heard of lately on the queues depot (agents depot).",
    )
    worker_of("agents", "depot", unseen=timedelta(minutes=2))
    assert grade_of("workers") == Grade.ILL
    worker_of("agents", "depot", stopped=True)
    assert grade_of("workers") == Grade.ILL


def test_an_installation_without_agents_is_ill(healthy: Engine) -> None:
    Agent.objects.all().delete()
    assert grade_of("workers") == Grade.ILL


def test_an_operation_that_no_worker_offers_is_ill_and_named(healthy: Engine) -> None:
    flight = Agent.objects.get(pk="flight")
    transitions.announce(
        Agent(name="flight", queue="agents", operations=sorted({*flight.operations} - {"flight.find"}))
    )
    finding = findings()["operations"]
    assert finding.grade == Grade.ILL
    assert "TripBooking names flight.find" in finding.said
    assert "TripBooking" in {workflow.name for workflow in registry.all()}


def test_ready_steps_that_wait_long_are_ill_without_a_worker_and_else_to_be_looked_at(healthy: Engine) -> None:
    Delivery.start()
    assert grade_of("waiting") == Grade.WELL
    healthy.ahead(40)
    worker_of("agents", "depot")
    finding = findings()["waiting"]
    assert (finding.grade, finding.said) == (
        Grade.LOOK,
        "Waiting long: ready steps of the queue agents: 1, the oldest for 40 s. Their workers are busy.",
    )
    worker_of("depot")
    assert grade_of("waiting") == Grade.ILL


def test_rings_and_due_times_that_nobody_sees_to_are_beats(healthy: Engine) -> None:
    Delivery.start()
    Diary(healthy).make(EACH_MINUTE)
    assert grade_of("beat") == Grade.WELL
    healthy.ahead(80)
    leadership.do(Duty.TICKS, lambda _: None)  # somebody looks, and does not see to them
    finding = findings()["beat"]
    assert (finding.grade, finding.said) == (
        Grade.ILL,
        "Schedules with due times that nobody opened: 1. Nobody rings for ready steps of the queues agents.",
    )


def test_a_service_that_is_away_is_to_be_looked_at(healthy: Engine) -> None:
    outage_of_shop(healthy)
    finding = findings()["breakers"]
    assert (finding.grade, finding.said) == (Grade.LOOK, "Away: shop (unavailable).")


def test_jobs_that_need_a_person_are_to_be_looked_at(healthy: Engine) -> None:
    data.failed_undo()
    finding = findings()["attention"]
    assert (finding.grade, finding.said) == (Grade.LOOK, "Jobs that need a person: 1.")


def test_an_installation_that_tells_nobody_is_to_be_looked_at(healthy: Engine, settings: Any) -> None:
    assert (
        findings()["channels"].said == "People are told over e-mail. Their messages have no links: SAG_URL is not set."
    )
    settings.SAG_NOTIFY = []
    finding = findings()["channels"]
    assert (finding.grade, finding.said) == (
        Grade.LOOK,
        "Nobody is told of outages and of jobs that need a person.",
    )
    assert "SAG_WEBHOOKS" in finding.do


def test_a_channel_that_cannot_be_used_is_ill(healthy: Engine, settings: Any) -> None:
    settings.SAG_APPRISE = {"chat": "file:///var/log/sag"}
    finding = findings()["channels"]
    assert finding.grade == Grade.ILL
    assert finding.said == "SAG_APPRISE['chat']: file:// reaches this machine and nobody else."
    assert finding.do


def test_a_channel_that_keeps_failing_is_to_be_looked_at_and_ill_where_it_is_the_only_one(
    healthy: Engine, settings: Any
) -> None:
    secrets = ["whsec_" + "c2VjcmV0" * 4]
    settings.SAG_WEBHOOKS = {"dead": {"url": f"http://127.0.0.1:{closed_port()}/", "secrets": secrets}}
    incident = Incident.objects.create(agent="shop", cause="unavailable", evidence={}, opened_at=now())
    for _ in range(2):
        escalation.tell()
        healthy.ahead(100)
    assert grade_of("channels") == Grade.WELL
    escalation.tell()
    finding = findings()["channels"]
    assert finding.grade == Grade.LOOK
    assert finding.said.startswith("webhook dead has failed 3 times: ConnectError")
    settings.SAG_NOTIFY = []
    assert grade_of("channels") == Grade.ILL
    needs.acknowledge(incident, actor="operator:ada")
    healthy.ahead(200)
    escalation.tell()
    assert grade_of("channels") == Grade.WELL


def test_a_channel_that_does_not_come_back_is_ill(healthy: Engine) -> None:
    Telling.objects.create(kind="incident", matter_id=1, channel="e-mail", attempts=1, try_after=now())
    assert grade_of("channels") == Grade.WELL
    healthy.ahead(301)
    finding = findings()["channels"]
    assert (finding.grade, finding.said) == (
        Grade.ILL,
        "e-mail was to be tried again and was not: it hangs, or no supervisor runs.",
    )


def test_a_next_week_without_a_partition_is_to_be_looked_at(healthy: Engine) -> None:
    [next_week] = [week for week in history.partitions() if week.covers(history.present() + history.WEEK)]
    with transaction.atomic():
        assert history.drop(next_week)
        finding = findings()["history"]
        transaction.set_rollback(True)
    assert (finding.grade, finding.do[:29]) == (Grade.LOOK, "See that the supervisor runs,")
    assert grade_of("history") == Grade.WELL


def test_events_in_the_catch_all_are_to_be_looked_at(healthy: Engine) -> None:
    job = new_job(Delivery.plan, {})
    job.pk = history.first_id(datetime(2040, 2, 29, 12, tzinfo=UTC))
    transitions.start(job, plan=Delivery.plan, actor="application", start_at=None)
    finding = findings()["history"]
    assert (finding.grade, finding.said) == (
        Grade.LOOK,
        "The catch-all holds events, the first of them of 2040-02-29 12:00 by the job's id.",
    )


@pytest.mark.parametrize(
    ("rows", "grade"),
    [
        ([], Grade.WELL),
        ([("a", "sync"), ("b", "async")], Grade.WELL),
        ([("a", "quorum")], Grade.WELL),
        ([("a", "async"), ("b", "async")], Grade.LOOK),
        ([("a", "potential")], Grade.LOOK),
        ([("a", None)], Grade.LOOK),
    ],
)
def test_a_standby_that_may_lag_is_to_be_looked_at(rows: list[tuple[str, str | None]], grade: Grade) -> None:
    found, said, do = doctor.of_standbys(rows)
    assert found == grade
    assert said
    assert bool(do) == (grade != Grade.WELL)


def test_without_servers_it_says_so_and_ends_with_1(tmp_path: Path) -> None:
    nowhere = {
        "DATABASE_URL": "postgresql://sag@127.0.0.1:1/sag",
        "CELERY_BROKER_URL": "redis://127.0.0.1:1/0",
        "SECRET_KEY": "x" * 50,
        "SAG_HOME": str(tmp_path),
        "PATH": "/usr/bin:/bin",
    }
    ended = subprocess.run(
        [sys.executable, "manage.py", "doctor", "--no-color"],
        cwd=ROOT,
        env=nowhere,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ended.returncode == 1, ended.stderr
    first, _, *others = ended.stdout.splitlines()
    assert first.startswith("ill   database")
    assert any(line.startswith("ill   broker") for line in others)
    assert "Traceback" not in ended.stderr
