"""A release over a fleet on a running system: all hosts have it, or each is again what it was before."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.jobs import Jobs
from tests.acceptance.system import RunningSystem

RELEASE = "2.1.0"
HOSTS = [f"h{number:03}" for number in range(1, 201)]
CANARY, REST = HOSTS[0], HOSTS[21:]


class Fleet:
    """The hosts' folders. Every second host ran something before."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        shutil.rmtree(folder, ignore_errors=True)
        for number, name in enumerate(HOSTS[::2]):
            (folder / name).mkdir(parents=True)
            (folder / name / "current").write_text(f"1.9.{number}\n")
        self.before = self.releases()

    def releases(self) -> dict[str, str | None]:
        """{host: what its `current` says}."""
        files = {name: self.folder / name / "current" for name in HOSTS}
        return {name: file.read_text() if file.exists() else None for name, file in files.items()}


@pytest.fixture
def fleet(system: RunningSystem) -> Fleet:
    return Fleet(system.home.path / "fleet")


def rollout(jobs: Jobs, **changes: Any) -> str:
    return jobs.start("FleetRollout", {"release": RELEASE, "hosts": HOSTS, "soak_seconds": 0.5} | changes)


def approve(jobs: Jobs, job: str) -> str:
    return str(jobs.signal(job, "approval", {"approved": True, "reason": "The canary sings."}).json()["outcome"])


def test_two_hundred_hosts_get_the_release_once_a_person_has_approved(system: RunningSystem, fleet: Fleet) -> None:
    with Jobs(system) as jobs:
        job = rollout(jobs)
        jobs.wait_for_step(job, "approval", "Running")
        assert fleet.releases() == fleet.before | {CANARY: RELEASE}
        assert approve(jobs, job) == "taken"
        assert jobs.finish(job, timeout=90)["state"] == "Completed"
        assert fleet.releases() == dict.fromkeys(HOSTS, RELEASE)
        assert [jobs.items(job, name) for name in ("canary", "early", "rest")] == [
            {"Completed": 1},
            {"Completed": 20},
            {"Completed": 179},
        ]


def test_an_approval_that_comes_before_its_time_is_kept(system: RunningSystem, fleet: Fleet) -> None:
    with Jobs(system) as jobs:
        job = rollout(jobs, hosts=HOSTS[:12], soak_seconds=4)
        assert approve(jobs, job) == "kept"
        assert jobs.finish(job)["state"] == "Completed"
        assert jobs.step(job, "approval")["result"] == {"approved": True, "reason": "The canary sings."}
        assert fleet.releases() == fleet.before | dict.fromkeys(HOSTS[:12], RELEASE)


def test_when_half_of_the_hosts_refuse_the_rollout_stops_and_every_host_is_what_it_was(
    system: RunningSystem, fleet: Fleet
) -> None:
    with Jobs(system) as jobs:
        job = rollout(jobs, refuse=REST[::2])
        approve(jobs, job)
        ended = jobs.finish(job, timeout=90)
        assert (ended["state"], ended["reason"]) == ("Compensated", "step_failed")
        assert fleet.releases() == fleet.before
        assert [jobs.items(job, name) for name in ("canary", "early")] == [{"Completed": 1}, {"Completed": 20}]
        rest = jobs.items(job, "rest")
        tolerated = int(0.02 * len(REST))
        assert rest["Failed"] > tolerated
        assert rest["Skipped"] > len(REST) / 2, rest
        undone = [jobs.items(job, f"{name}.undo") for name in ("canary", "early", "rest")]
        assert undone == [{"Completed": 1}, {"Completed": 20}, {"Completed": rest["Completed"]}]
        assert jobs.job(job)["needs_person"] == []


def test_a_few_hosts_that_refuse_do_not_stop_the_others(system: RunningSystem, fleet: Fleet) -> None:
    with Jobs(system) as jobs:
        job = rollout(jobs, refuse=REST[:3])
        approve(jobs, job)
        assert jobs.finish(job, timeout=90)["state"] == "Completed"
        unchanged = {name: fleet.before[name] for name in REST[:3]}
        assert fleet.releases() == dict.fromkeys(HOSTS, RELEASE) | unchanged
        assert jobs.items(job, "rest") == {"Completed": 176, "Failed": 3}


def test_a_refused_approval_puts_the_canary_back(system: RunningSystem, fleet: Fleet) -> None:
    with Jobs(system) as jobs:
        job = rollout(jobs)
        jobs.wait_for_step(job, "approval", "Running")
        assert fleet.releases()[CANARY] == RELEASE
        jobs.signal(job, "approval", {"approved": False, "reason": "It is Friday."})
        ended = jobs.finish(job)
        assert (ended["state"], ended["reason"]) == ("Compensated", "step_failed")
        assert fleet.releases() == fleet.before
        error = jobs.step(job, "approval")["error"]
        assert (error["kind"], error["code"]) == ("permanent", "not_approved")
        assert "It is Friday." in error["message"]
        assert jobs.items(job, "early") == jobs.items(job, "rest") == {}
