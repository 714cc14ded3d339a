"""The pretend vendors: what a good one does, and each fault by its name."""

import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx2
import pytest

from agents.simulators.ledger import Ledger
from agents.simulators.server import Simulators

NO_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # an empty one: reading the system's takes long
LEG = {"leg": {"from": "BER", "to": "LIS", "date": "2027-03-04", "seats": 2}}
RATES = ["error_rate", "lose_answer_rate", "lose_request_rate", "slow_forever_rate"]


class Vendors:
    """A client of the simulators under test, with the few verbs that the tests speak in."""

    def __init__(self, url: str) -> None:
        self.http = httpx2.Client(base_url=url, verify=NO_TLS, trust_env=False, timeout=10)

    def reserve(self, key: str, service: str = "hotels", body: Any = None) -> httpx2.Response:
        return self.http.post(f"/{service}/reservations", json=body or {}, headers={"Idempotency-Key": key})

    def find(self, key: str, service: str = "hotels") -> httpx2.Response:
        return self.http.get(f"/{service}/reservations/{key}")

    def cancel(self, key: str, service: str = "hotels") -> httpx2.Response:
        return self.http.delete(f"/{service}/reservations/{key}")

    def faults(self, service: str = "hotels", **faults: Any) -> httpx2.Response:
        return self.http.put(f"/faults/{service}", json=faults)

    def outcomes(self) -> list[str]:
        return [call["outcome"] for call in self.http.get("/ledger").json()["calls"]]

    def reservations(self) -> list[dict[str, Any]]:
        reservations: list[dict[str, Any]] = self.http.get("/ledger").json()["reservations"]
        return reservations

    def live(self) -> int:
        return sum(reservation["live"] for reservation in self.reservations())


@pytest.fixture
def vendors(tmp_path: Path) -> Iterator[Vendors]:
    server = Simulators(("127.0.0.1", 0), Ledger(tmp_path / "ledger.db"))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield Vendors(f"http://127.0.0.1:{server.server_port}")
    server.shutdown()
    server.server_close()
    thread.join()


def eventually(condition: Callable[[], bool], *, within: float = 5) -> None:
    """Waits for what another thread is about to do; fails when it has not come in time."""
    until = time.monotonic() + within
    while not condition():
        assert time.monotonic() < until, "it did not happen in time"
        time.sleep(0.01)


# A good vendor


def test_a_reservation_is_answered_with_its_reference_and_what_was_asked_for(vendors: Vendors) -> None:
    answer = vendors.reserve("k1", "flights", LEG)
    assert answer.status_code == 201
    body = answer.json()
    assert body["key"] == "k1"
    assert body["service"] == "flights"
    assert body["arrival"] == "2027-03-04T11:35:00Z"
    assert body["price"] == {"amount": "378.00", "currency": "EUR"}
    assert body["request"] == LEG
    assert vendors.reservations() == [
        {
            "service": "flights",
            "key": "k1",
            "reference": body["reference"],
            "live": True,
            "created_at": body["created_at"],
            "cancelled_at": None,
        }
    ]


def test_the_same_key_gets_the_same_answer_and_one_reservation(vendors: Vendors) -> None:
    first, second = vendors.reserve("k1"), vendors.reserve("k1", body={"other": True})
    assert (first.status_code, first.json()) == (second.status_code, second.json())
    assert vendors.outcomes() == ["booked", "replayed"]
    assert vendors.live() == 1


def test_the_same_key_twenty_times_at_once_is_one_reservation(vendors: Vendors) -> None:
    with ThreadPoolExecutor(20) as pool:
        answers = list(pool.map(lambda _: vendors.reserve("k1").json()["reference"], range(20)))
    assert len(set(answers)) == 1
    assert vendors.live() == 1
    assert sorted(vendors.outcomes()) == ["booked"] + ["replayed"] * 19


def test_a_key_belongs_to_one_service(vendors: Vendors) -> None:
    vendors.reserve("k1", "hotels")
    assert vendors.find("k1", "cars").status_code == 404


def test_a_reservation_is_found_by_its_key_until_it_is_cancelled(vendors: Vendors) -> None:
    assert vendors.find("k1").status_code == 404
    reserved = vendors.reserve("k1").json()
    assert vendors.find("k1").json() == reserved
    vendors.cancel("k1")
    assert vendors.find("k1").status_code == 404
    assert vendors.outcomes() == ["not_found", "booked", "found", "cancelled", "not_found"]


def test_cancelling_is_answered_the_same_when_asked_again(vendors: Vendors) -> None:
    reference = vendors.reserve("k1").json()["reference"]
    first, second = vendors.cancel("k1"), vendors.cancel("k1")
    assert first.json() == second.json() == {"cancelled": True, "reference": reference, "references": [reference]}
    assert vendors.outcomes() == ["booked", "cancelled", "already_cancelled"]
    assert vendors.live() == 0


def test_a_cancelled_key_refuses_later_reservations(vendors: Vendors) -> None:
    vendors.reserve("k1")
    vendors.cancel("k1")
    answer = vendors.reserve("k1")
    assert (answer.status_code, answer.json()["code"]) == (409, "key_closed")
    assert vendors.live() == 0


def test_cancelling_an_unknown_key_closes_it(vendors: Vendors) -> None:
    assert vendors.cancel("k1").json() == {"cancelled": False}
    assert vendors.reserve("k1").json()["code"] == "key_closed"
    assert vendors.outcomes() == ["nothing_found", "key_closed"]


def test_a_key_may_hold_slashes_and_colons(vendors: Vendors) -> None:
    vendors.reserve("job/7:hotel#2")
    assert vendors.find("job%2F7%3Ahotel%232").status_code == 200


@pytest.mark.parametrize("headers", [{}, {"Idempotency-Key": ""}])
def test_a_reservation_without_a_key_is_refused(vendors: Vendors, headers: dict[str, str]) -> None:
    answer = vendors.http.post("/hotels/reservations", json={}, headers=headers)
    assert (answer.status_code, answer.json()["code"]) == (400, "key_missing")
    assert vendors.outcomes() == ["bad_request"]


@pytest.mark.parametrize("body", [b"[1]", b"{", b"\xff", b'{"price": NaN}', b"[" * 100_000])
def test_a_body_that_is_no_json_object_is_refused_and_books_nothing(vendors: Vendors, body: bytes) -> None:
    answer = vendors.http.post("/hotels/reservations", content=body, headers={"Idempotency-Key": "k1"})
    assert answer.status_code == 400
    assert vendors.outcomes() == ["bad_request"]
    assert vendors.live() == 0


def test_forgetting_the_ledger_opens_closed_keys_and_keeps_the_faults(vendors: Vendors) -> None:
    vendors.faults(latency_ms=1)
    vendors.cancel("k1")
    assert vendors.http.delete("/ledger").status_code == 200
    assert vendors.http.get("/ledger").json() == {"calls": [], "reservations": []}
    assert vendors.reserve("k1").status_code == 201
    assert vendors.http.get("/faults").json()["hotels"]["latency_ms"] == 1


def test_the_ledger_can_be_asked_for_its_newest_lines(vendors: Vendors) -> None:
    for number in range(5):
        vendors.reserve(f"k{number}")
    newest = vendors.http.get("/ledger?last=2").json()
    assert [call["key"] for call in newest["calls"]] == ["k3", "k4"]
    assert [reservation["key"] for reservation in newest["reservations"]] == ["k3", "k4"]
    assert vendors.http.get("/ledger?last=two").status_code == 400


def test_times_are_iso_8601_in_utc(vendors: Vendors) -> None:
    vendors.reserve("k1")
    at = vendors.http.get("/ledger").json()["calls"][0]["at"]
    assert at.endswith("Z")
    assert abs(datetime.fromisoformat(at) - datetime.now(UTC)) < timedelta(minutes=1)


def test_the_page_is_served(vendors: Vendors) -> None:
    answer = vendors.http.get("/")
    assert answer.headers["Content-Type"].startswith("text/html")
    assert "Pretend vendors" in answer.text


def test_a_wrong_path_and_a_wrong_method_are_told_apart(vendors: Vendors) -> None:
    assert vendors.http.get("/boats/reservations/k1").json()["code"] == "no_such_path"
    wrong = vendors.http.post("/ledger")
    assert (wrong.status_code, wrong.headers["Allow"]) == (405, "GET, DELETE")


# Setting faults


def test_setting_faults_replaces_all_of_them(vendors: Vendors) -> None:
    vendors.faults(down=True, retry_after=3)
    vendors.faults(latency_ms=5)
    assert vendors.http.get("/faults").json()["hotels"] == {
        "latency_ms": 5,
        "jitter_ms": 0,
        "error_rate": 0,
        "lose_answer_rate": 0,
        "lose_request_rate": 0,
        "slow_forever_rate": 0,
        "apply_after_ms": 0,
        "down": False,
        "sold_out": False,
        "retry_after": None,
        "honour_keys": True,
        "seed": None,
        "times": None,
        "operations": ["reserve", "find", "cancel"],
    }


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *[(rate, 1.5) for rate in RATES],
        *[(rate, True) for rate in RATES],
        ("latency_ms", -1),
        ("latency_ms", "5"),
        ("jitter_ms", None),
        ("apply_after_ms", 10**12),
        ("down", 1),
        ("sold_out", "yes"),
        ("honour_keys", None),
        ("retry_after", 1.5),
        ("seed", "lucky"),
        ("times", -1),
        ("operations", []),
        ("operations", ["reserve", "steal"]),
        ("operations", "reserve"),
        ("operations", [["reserve"]]),
        ("latency", 5),
    ],
)
def test_a_bad_fault_is_refused_by_name_and_changes_nothing(vendors: Vendors, field: str, value: Any) -> None:
    vendors.faults(latency_ms=1)
    answer = vendors.faults(**{field: value})
    assert (answer.status_code, answer.json()["code"], answer.json()["field"]) == (400, "bad_fault", field)
    assert vendors.http.get("/faults").json()["hotels"]["latency_ms"] == 1


def test_faults_of_an_unknown_service_are_refused(vendors: Vendors) -> None:
    answer = vendors.faults("boats", down=True)
    assert (answer.status_code, answer.json()["code"]) == (404, "no_such_service")


# Each fault


def test_latency_delays_the_answer(vendors: Vendors) -> None:
    vendors.faults(latency_ms=150)
    before = time.monotonic()
    assert vendors.reserve("k1").status_code == 201
    assert time.monotonic() - before >= 0.15


def test_error_rate_answers_500_and_does_nothing(vendors: Vendors) -> None:
    vendors.faults(error_rate=1)
    assert vendors.reserve("k1").status_code == 500
    assert vendors.outcomes() == ["error"]
    assert vendors.live() == 0


def test_a_lost_answer_was_applied(vendors: Vendors) -> None:
    vendors.faults(lose_answer_rate=1, times=1)
    with pytest.raises(httpx2.RemoteProtocolError):
        vendors.reserve("k1")
    assert vendors.live() == 1
    assert vendors.reserve("k1").json()["reference"] == vendors.reservations()[0]["reference"]
    assert vendors.outcomes() == ["answer_lost", "replayed"]


def test_a_lost_answer_of_a_cancellation_was_applied(vendors: Vendors) -> None:
    vendors.reserve("k1")
    vendors.faults(lose_answer_rate=1, operations=["cancel"])
    with pytest.raises(httpx2.RemoteProtocolError):
        vendors.cancel("k1")
    assert vendors.live() == 0


def test_a_lost_request_was_not_applied(vendors: Vendors) -> None:
    vendors.faults(lose_request_rate=1)
    with pytest.raises(httpx2.RemoteProtocolError):
        vendors.reserve("k1")
    assert vendors.outcomes() == ["request_lost"]
    assert vendors.live() == 0


def test_apply_after_loses_the_answer_and_books_later(vendors: Vendors) -> None:
    vendors.faults(apply_after_ms=300, operations=["reserve"])
    with pytest.raises(httpx2.RemoteProtocolError):
        vendors.reserve("k1")
    assert vendors.outcomes() == ["late"]
    assert vendors.live() == 0
    eventually(lambda: vendors.outcomes() == ["late_applied"])
    assert vendors.live() == 1


def test_apply_after_books_nothing_under_a_key_cancelled_meanwhile(vendors: Vendors) -> None:
    vendors.faults(apply_after_ms=300, operations=["reserve"])
    with pytest.raises(httpx2.RemoteProtocolError):
        vendors.reserve("k1")
    assert vendors.cancel("k1").json() == {"cancelled": False}
    eventually(lambda: vendors.outcomes() == ["late_ignored", "nothing_found"])
    assert vendors.reservations() == []


def test_apply_after_books_under_a_cancelled_key_when_keys_are_not_honoured(vendors: Vendors) -> None:
    vendors.faults(apply_after_ms=300, honour_keys=False, operations=["reserve"])
    with pytest.raises(httpx2.RemoteProtocolError):
        vendors.reserve("k1")
    vendors.cancel("k1")
    eventually(lambda: vendors.outcomes() == ["late_applied", "nothing_found"])
    assert vendors.live() == 1


def test_apply_after_cancels_later_and_leaves_find_alone(vendors: Vendors) -> None:
    vendors.reserve("k1")
    vendors.faults(apply_after_ms=300)
    with pytest.raises(httpx2.RemoteProtocolError):
        vendors.cancel("k1")
    assert vendors.find("k1").status_code == 200
    eventually(lambda: vendors.live() == 0)


def test_effects_come_in_the_order_in_which_they_are_due(vendors: Vendors) -> None:
    vendors.faults(apply_after_ms=60_000)
    with pytest.raises(httpx2.RemoteProtocolError):
        vendors.reserve("later")
    vendors.faults(apply_after_ms=50)
    with pytest.raises(httpx2.RemoteProtocolError):
        vendors.reserve("sooner")
    eventually(lambda: vendors.outcomes() == ["late", "late_applied"])


def test_down_answers_503(vendors: Vendors) -> None:
    vendors.faults(down=True)
    answer = vendors.reserve("k1")
    assert (answer.status_code, answer.headers.get("Retry-After")) == (503, None)
    assert vendors.outcomes() == ["down"]


@pytest.mark.parametrize(
    ("faults", "status"), [({"down": True}, 503), ({"error_rate": 1}, 500), ({}, 429)], ids=["down", "error", "alone"]
)
def test_retry_after_is_told_with_each_refusal(vendors: Vendors, faults: dict[str, Any], status: int) -> None:
    vendors.faults(retry_after=7, **faults)
    answer = vendors.reserve("k1")
    assert (answer.status_code, answer.headers["Retry-After"]) == (status, "7")
    assert vendors.live() == 0


def test_sold_out_refuses_new_keys_and_still_knows_the_old_ones(vendors: Vendors) -> None:
    vendors.reserve("k1")
    vendors.faults(sold_out=True)
    answer = vendors.reserve("k2")
    assert (answer.status_code, answer.json()["code"]) == (409, "sold_out")
    assert vendors.reserve("k1").status_code == 201
    vendors.faults()
    assert vendors.reserve("k2").status_code == 201


def test_slow_forever_holds_the_connection_until_the_client_leaves(vendors: Vendors) -> None:
    vendors.faults(slow_forever_rate=1)
    host, port = vendors.http.base_url.host, vendors.http.base_url.port
    with socket.create_connection((host, port)) as connection:
        connection.sendall(b"POST /hotels/reservations HTTP/1.1\r\nHost: h\r\nIdempotency-Key: k1\r\n\r\n")
        eventually(lambda: vendors.outcomes() == ["never_answered"])
        connection.settimeout(0.3)
        with pytest.raises(TimeoutError):
            connection.recv(1)
    assert vendors.live() == 0


def test_a_careless_vendor_books_again_on_every_call_and_after_a_cancellation(vendors: Vendors) -> None:
    vendors.faults(honour_keys=False)
    references = {vendors.reserve("k1").json()["reference"] for _ in range(3)}
    assert (len(references), vendors.live()) == (3, 3)
    assert set(vendors.cancel("k1").json()["references"]) == references
    assert vendors.live() == 0
    assert vendors.reserve("k1").status_code == 201
    assert vendors.live() == 1


def test_times_counts_only_matching_calls_of_that_service(vendors: Vendors) -> None:
    vendors.faults(down=True, times=2, operations=["reserve"])
    assert vendors.find("k1").status_code == 404
    assert vendors.reserve("k1", "cars").status_code == 201
    assert [vendors.reserve("k1").status_code for _ in range(3)] == [503, 503, 201]
    assert vendors.http.get("/faults").json()["hotels"]["times"] == 0


def test_operations_limits_the_faults_to_those_named(vendors: Vendors) -> None:
    vendors.faults(down=True, operations=["cancel", "find"])
    assert vendors.reserve("k1").status_code == 201
    assert vendors.find("k1").status_code == 503
    assert vendors.cancel("k1").status_code == 503


def test_the_same_seed_draws_the_same_luck(vendors: Vendors) -> None:
    def luck(**faults: Any) -> list[int]:
        vendors.faults(error_rate=0.5, **faults)
        return [vendors.find("k1").status_code for _ in range(24)]

    first = luck(seed=11)
    assert first.count(500) not in (0, 24)
    assert luck(seed=11) == first
    assert luck(seed=12) != first


def test_changing_one_rate_does_not_shift_the_luck_of_another(vendors: Vendors) -> None:
    def failures(**faults: Any) -> list[int]:
        vendors.faults(error_rate=0.5, seed=3, **faults)
        return [vendors.find("k1").status_code for _ in range(16)]

    assert failures() == failures(jitter_ms=1)
