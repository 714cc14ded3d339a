"""The agents of a roll-out: its waves, and hosts that come back to exactly what they were."""

import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pytest_django import Settings

from agents import Call, LeaseLost, Permanent
from agents.call import Undoes
from agents.fleet import host, waves
from sagsite.home import Home


@pytest.fixture(autouse=True)
def fleet(tmp_path: Path, settings: Settings) -> Iterator[Path]:
    settings.HOME = Home(tmp_path)
    return tmp_path / "fleet"


def call(
    input: dict[str, Any], *, key: str = "job-1:canary:0", undoes: Undoes | None = None, lease: float = 10
) -> Call:
    now = time.monotonic()
    return Call(
        job_id=uuid.uuid4(),
        workflow="FleetRollout",
        step="canary",
        attempt=1,
        idempotency_key=key,
        input=input,
        undoes=undoes,
        ends_at=now + 20,
        may_send_until=now + lease,
    )


def deploy(release: str, *, key: str, to: str = "h001") -> dict[str, Any]:
    return host.deploy(call({"host": to, "release": release, "refuse": ["h666"]}, key=key))


def rollback(key: str, *, of: str = "h001") -> dict[str, Any]:
    original = Undoes(name="canary", idempotency_key=key, input={"host": of, "release": "any"}, result=None)
    return host.rollback(call({}, key=f"{key}.undo", undoes=original))


def current(fleet: Path, name: str = "h001") -> bytes | None:
    file = fleet / name / "current"
    return file.read_bytes() if file.exists() else None


@pytest.mark.parametrize(
    ("hosts", "early", "rest"), [(1, 0, 0), (2, 1, 0), (3, 1, 1), (19, 1, 17), (20, 2, 17), (200, 20, 179)]
)
def test_waves_are_the_first_a_tenth_and_the_rest(hosts: int, early: int, rest: int) -> None:
    names = [f"h{number:03}" for number in range(hosts)]
    planned = waves.waves(call({"hosts": names}))
    assert [planned["canary"], len(planned["early"]), len(planned["rest"])] == [names[:1], early, rest]
    assert planned["canary"] + planned["early"] + planned["rest"] == names


def test_no_hosts_make_no_waves() -> None:
    with pytest.raises(Permanent):
        waves.waves(call({"hosts": []}))


def test_a_release_is_deployed_and_what_was_there_comes_back(fleet: Path) -> None:
    assert deploy("2.0.0", key="a") == {"host": "h001", "release": "2.0.0"}
    deploy("2.1.0", key="b")
    assert current(fleet) == b"2.1.0"
    assert rollback("b") == {"host": "h001", "rolled_back": True}
    assert current(fleet) == b"2.0.0"
    rollback("a")
    assert current(fleet) is None


def test_what_was_there_comes_back_byte_by_byte(fleet: Path) -> None:
    (fleet / "h001").mkdir(parents=True)
    (fleet / "h001" / "current").write_bytes(b"1.9 by hand\r\n\xff")
    deploy("2.0.0", key="a")
    rollback("a")
    assert current(fleet) == b"1.9 by hand\r\n\xff"


def test_a_repeated_deployment_does_not_take_its_own_release_for_the_previous_one(fleet: Path) -> None:
    deploy("2.0.0", key="a")
    for _ in range(3):
        deploy("2.1.0", key="b")
    rollback("b")
    assert current(fleet) == b"2.0.0"


def test_a_deployment_that_was_noted_and_not_made_is_made_by_the_next_attempt(
    fleet: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as dying:
        dying.setattr(host._Host, "run", lambda *_: exit())
        with pytest.raises(SystemExit):
            deploy("2.0.0", key="a")
    assert current(fleet) is None
    deploy("2.0.0", key="a")
    assert current(fleet) == b"2.0.0"
    rollback("a")
    assert current(fleet) is None


def test_a_rollback_may_be_repeated_and_is_final(fleet: Path) -> None:
    deploy("2.0.0", key="a")
    deploy("2.1.0", key="b")
    assert rollback("b") == rollback("b")
    with pytest.raises(Permanent) as raised:
        deploy("2.1.0", key="b")
    assert raised.value.code == "key_closed"
    assert current(fleet) == b"2.0.0"


def test_a_rollback_of_nothing_changes_nothing_and_closes_the_key(fleet: Path) -> None:
    deploy("2.0.0", key="a")
    assert rollback("b") == {"host": "h001", "rolled_back": False}
    assert current(fleet) == b"2.0.0"
    with pytest.raises(Permanent, match="rolled back"):
        deploy("2.1.0", key="b")


def test_a_rollback_leaves_a_later_deployment_alone_and_hands_on_what_was_there(fleet: Path) -> None:
    deploy("2.0.0", key="a")
    deploy("2.1.0", key="b")
    deploy("2.2.0", key="c")
    rollback("b")
    assert current(fleet) == b"2.2.0"
    deploy("2.0.0", key="a")  # repeated late, below another
    assert current(fleet) == b"2.2.0"
    rollback("c")
    assert current(fleet) == b"2.0.0"


def test_a_host_that_refuses_is_left_as_it_was(fleet: Path) -> None:
    with pytest.raises(Permanent) as raised:
        deploy("2.0.0", key="a", to="h666")
    assert raised.value.code == "refused"
    assert not fleet.exists()


@pytest.mark.parametrize("name", ["..", "../h001", "/tmp/h001", "", ".ssh", "h001\n"])
def test_a_name_cannot_lead_out_of_the_fleet(fleet: Path, name: str) -> None:
    for act in (lambda: deploy("2.0.0", key="a", to=name), lambda: rollback("a", of=name)):
        with pytest.raises(Permanent) as raised:
            act()
        assert raised.value.code == "no_host"
    assert not fleet.exists()


def test_an_attempt_whose_lease_is_over_changes_nothing(fleet: Path) -> None:
    with pytest.raises(LeaseLost):
        host.deploy(call({"host": "h001", "release": "2.0.0"}, lease=-1))
    assert current(fleet) is None


def test_deployments_at_the_same_time_wait_for_each_other(fleet: Path) -> None:
    keys = [f"key-{number}" for number in range(16)]
    threads = [threading.Thread(target=deploy, args=(f"2.{n}.0",), kwargs={"key": key}) for n, key in enumerate(keys)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert current(fleet) is not None
    for key in keys:
        rollback(key)
    assert current(fleet) is None


def test_a_rollback_that_undoes_no_step_is_permanent() -> None:
    with pytest.raises(Permanent) as raised:
        host.rollback(call({}))
    assert raised.value.code == "nothing_to_undo"


def test_hosts_promise_to_honour_and_to_close_keys() -> None:
    assert sorted(host.host.operations) == ["host.deploy", "host.rollback"]
    assert (host.host.honours_keys, host.host.closes_keys) == (True, True)
