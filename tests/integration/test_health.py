"""What load balancers, alarms and Prometheus are told, without a token."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from django.db import connection, transaction
from django.test import Client

from supervisor import leadership, metrics, tasks
from supervisor.leadership import Duty
from tests.integration.engine import Beside, Engine, named
from tests.integration.outages import outage_of_shop
from tests.integration.recurring import EACH_MINUTE, Diary
from tests.integration.test_doctor import worker_of
from workflows import Workflow, standing, step

ROOT = Path(__file__).resolve().parents[2]
ALERTS = ROOT / "docs" / "howto" / "alerts.yml"


class Measured(Workflow):
    a = step("shop.a")
    b = step("depot.b", after=[a])


def ask(path: str = "/health/ready") -> Any:
    return Client().get(path)


def reasons() -> list[str]:
    answer = ask()
    found: list[str] = answer.json()["reasons"]
    assert answer.status_code == (503 if found else 200)
    return found


@pytest.fixture
def healthy(engine: Engine) -> Engine:
    tasks.sweep()
    tasks.open_due()
    return engine


def test_it_is_ready_while_sweeps_and_looks_at_schedules_end(healthy: Engine) -> None:
    assert reasons() == []
    assert ask().json() == {"status": "ready", "reasons": [], "notes": []}


def test_it_is_not_before_the_first_of_them(engine: Engine) -> None:
    assert reasons() == [
        "No sweep of the supervisor has run yet.",
        "Nobody has looked for due times of schedules yet.",
    ]


def told(pattern: str) -> bool:
    """Whether the one reason is this one."""
    [reason] = reasons()
    return re.fullmatch(pattern, reason) is not None


@pytest.fixture
def slow(settings: Any) -> None:
    """Intervals longer than what a slow machine takes for a test. Ticks are not looked at in this time."""
    settings.SAG = {"sweep": 20}


@pytest.mark.usefixtures("slow")
def test_a_silent_supervisor_is_a_reason_after_three_intervals(healthy: Engine) -> None:
    healthy.ahead(40)
    tasks.open_due()
    assert reasons() == []
    healthy.ahead(25)
    tasks.open_due()
    assert told(r"The last sweep of the supervisor ended [67]\d s ago\.")


@pytest.mark.usefixtures("slow")
def test_a_sweep_that_has_much_to_do_is_not_missed_while_it_is_at_it(healthy: Engine) -> None:
    healthy.ahead(65)
    tasks.open_due()

    def at_it(_: Any) -> None:
        assert reasons() == []
        healthy.ahead(15)  # and has stood still since
        assert told(r"The last sweep of the supervisor ended [89]\d s ago\.")

    leadership.do(Duty.SWEEP, at_it)


def test_a_tick_loop_that_fails_at_each_pass_is_a_reason_although_sweeps_go_on(
    healthy: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SAS-034: it was swallowed, the process stayed up, and no schedule ran again."""

    def fails() -> int:
        raise ConnectionError("the database is away")

    with monkeypatch.context() as patched:
        patched.setattr(tasks.ticks, "open_due", fails)
        for _ in range(16):
            healthy.ahead(2)
            tasks.sweep()
            with pytest.raises(ConnectionError):
                tasks.open_due()
    assert told(r"The last look for due times of schedules ended [345]\d s ago\.")
    healthy.ahead(1)
    tasks.open_due()
    assert reasons() == []


# --- metrics -------------------------------------------------------------------------------------------------------------


def figures() -> dict[str, float]:
    """{name with labels: value}"""
    answer = ask("/metrics")
    assert answer.status_code == 200
    assert answer["Content-Type"].startswith("text/plain; version=")
    lines = [line for line in answer.content.decode().splitlines() if not line.startswith("#")]
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines)}


def test_the_figures_are_those_of_the_store(healthy: Engine) -> None:
    Measured.start()
    held = Measured.start()
    healthy.claim(named(held, "a"))
    worker_of("agents", "depot")
    healthy.ahead(4)
    found = figures()
    assert found['sag_jobs{state="Running"}'] == 2
    assert found['sag_jobs{state="Compensating"}'] == 0
    assert found["sag_jobs_need_person"] == 0
    assert (found['sag_steps_ready{agent="shop"}'], found['sag_steps_running{agent="shop"}']) == (1, 1)
    assert 4 <= found['sag_oldest_ready_seconds{queue="agents"}'] < 60
    assert 'sag_oldest_ready_seconds{queue="depot"}' not in found
    assert (found['sag_workers_alive{queue="agents"}'], found['sag_workers_alive{queue="depot"}']) == (1, 1)
    assert 4 <= found["sag_sweep_age_seconds"] < 60
    assert found["sag_sweep_interval_seconds"] == 2
    assert 4 <= found['sag_duty_age_seconds{duty="ticks"}'] < 60
    assert found['sag_duty_interval_seconds{duty="ticks"}'] == 1
    assert found["sag_observe_only"] == 0


def test_what_never_was_is_infinitely_long_ago(engine: Engine) -> None:
    found = figures()
    assert found["sag_sweep_age_seconds"] == found['sag_duty_age_seconds{duty="rings"}'] == float("inf")


def test_an_outage_is_counted_with_what_it_parks(healthy: Engine) -> None:
    outage_of_shop(healthy)
    found = figures()
    assert (found["sag_incidents_open"], found['sag_breaker_parks{agent="shop"}']) == (1, 1)
    assert (found['sag_steps_parked{agent="shop"}'], found['sag_steps_ready{agent="shop"}']) == (6, 0)
    assert found['sag_calls{agent="shop",outcome="unavailable"}'] == 6


def test_due_times_that_nobody_opens_and_those_that_were_missed_are_counted(healthy: Engine) -> None:
    diary = Diary(healthy)
    diary.make(EACH_MINUTE, catch_up="none")
    healthy.ahead(3600)
    assert figures()["sag_schedules_overdue"] >= 1
    diary.look()
    found = figures()
    assert found["sag_schedules_overdue"] == 0
    missed = {name: value for name, value in found.items() if name.startswith("sag_ticks_missed")}
    assert sum(missed.values()) >= 50


def test_counts_go_as_far_as_they_are_said_to(healthy: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(standing, "COUNTED", 3)
    for _ in range(5):
        Measured.start()
    found = figures()
    assert (found['sag_jobs{state="Running"}'], found['sag_steps_ready{agent="shop"}']) == (3, 3)


@pytest.fixture
def locked_store(engine: Engine) -> Iterator[None]:
    with transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute("LOCK TABLE sag_workflows_step IN ACCESS EXCLUSIVE MODE")
        yield


@pytest.mark.usefixtures("locked_store")
def test_figures_that_the_database_does_not_give_are_not_waited_for() -> None:
    def patiently() -> Any:
        with connection.cursor() as cursor:
            cursor.execute("SET lock_timeout = 0; SET statement_timeout = 0")
        return ask("/metrics")

    answer = Beside(patiently).result()
    assert (answer.status_code, answer.content) == (503, b"The database does not answer.\n")


def test_only_reading_is_answered(engine: Engine) -> None:
    assert Client().post("/metrics").status_code == 405


# --- the alert rules -----------------------------------------------------------------------------------------------------


def rules() -> list[dict[str, Any]]:
    [group] = yaml.safe_load(ALERTS.read_text())["groups"]
    found: list[dict[str, Any]] = group["rules"]
    return found


def test_each_metric_that_an_alert_names_exists(healthy: Engine) -> None:
    exposed = set(re.findall(rb"^# TYPE (\w+)", metrics.exposed(), re.M))
    named_there = {name for rule in rules() for name in re.findall(r"sag_\w+", rule["expr"])}
    assert len(named_there) >= 8
    assert {name.encode() for name in named_there} <= exposed


def test_each_duty_that_an_alert_names_exists() -> None:
    named_there = {name for rule in rules() for name in re.findall(r'duty="(\w+)"', rule["expr"])}
    assert named_there
    assert named_there <= {str(duty) for duty in Duty}


def test_each_alert_says_what_it_means_and_what_to_do() -> None:
    names = [rule["alert"] for rule in rules()]
    assert len(names) == len(set(names)) >= 8
    for rule in rules():
        assert rule["labels"]["severity"] in ("page", "ticket")
        assert rule["annotations"].keys() == {"summary", "do"}


def test_the_page_on_operating_lists_each_metric(healthy: Engine) -> None:
    page = (ROOT / "docs" / "howto" / "operate.md").read_text().partition("\n## Prometheus\n")[2]
    exposed = {name.decode() for name in re.findall(rb"^# TYPE (\w+)", metrics.exposed(), re.M)}
    assert set(re.findall(r"`(sag_\w+)", page)) == exposed
