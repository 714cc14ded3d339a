"""Schedules as client programs see them."""

import uuid
from typing import Any

import pytest

from tests.api import Program, newcomer
from tests.integration.engine import Engine
from tests.integration.recurring import EACH_MINUTE, MINUTE, MORNING, Diary, outcomes
from workflows.models import Job, Schedule, Tick

HOURLY: dict[str, Any] = {"workflow": "Chore", "input": {"n": 1}, "cron": "0 * * * *", "timezone": "Europe/Berlin"}


@pytest.fixture
def diary(engine: Engine) -> Diary:
    diary = Diary(engine)
    diary.at(MORNING)
    return diary


@pytest.fixture
def operator(diary: Diary) -> Program:
    return newcomer("jobs:operate")


def made(program: Program, **changes: Any) -> dict[str, Any]:
    response = program.post("schedules", {**HOURLY, **changes})
    assert response.status_code == 201, response.json()
    return dict(response.json())


def pointers(response: Any) -> list[str]:
    assert response.status_code == 422, response.json()
    return [error["pointer"] for error in response.json()["errors"]]


def test_a_schedule_is_made_with_all_that_is_to_be_known_of_it(operator: Program) -> None:
    response = operator.post("schedules", HOURLY, idempotency_key="s-1")
    body = response.json()
    assert response.status_code == 201
    assert response["Location"] == f"/api/v1/schedules/{body['id']}"
    assert response["ETag"] == '"1"'
    assert (body["cron"], body["timezone"], body["input"]) == (["0 * * * *"], "Europe/Berlin", {"n": 1})
    assert (body["catch_up"], body["overlap"], body["jitter"], body["paused"]) == ("latest", "skip", 0, False)
    assert body["next_due"] == "2027-03-04T11:00:00Z"
    assert body["in_words"] == "At the start of every hour (Europe/Berlin)"
    assert operator.get(body["links"]["self"]).json() == body


def test_a_schedule_that_is_sent_twice_under_one_key_is_one(operator: Program) -> None:
    ids = {operator.post("schedules", HOURLY, idempotency_key="s-1").json()["id"] for _ in range(3)}
    assert len(ids) == Schedule.objects.count() == 1


def test_an_interval_and_a_moment_can_be_asked_for(operator: Program) -> None:
    interval = made(operator, cron=None, every=900)
    assert (interval["every"], interval["next_due"]) == (900, "2027-03-04T10:15:00Z")
    moment = made(operator, cron=None, at="2027-03-05T09:00:00+01:00")
    assert (moment["at"], moment["next_due"]) == (["2027-03-05T08:00:00Z"], "2027-03-05T08:00:00Z")


def test_a_calendar_can_be_asked_for_and_given_up_again(operator: Program) -> None:
    schedule = made(operator, cron=None, calendar={"day": 13, "weekday": "FRI"})
    assert schedule["calendar"] == [{"day": "13", "weekday": "FRI"}]
    assert schedule["next_due"] == "2027-08-12T22:00:00Z"
    path = f"schedules/{schedule['id']}"
    edited = operator.ask("PATCH", path, {"cron": "0 8 * * *"}, {"If-Match": "*"}).json()
    assert (edited["calendar"], edited["cron"]) == ([], ["0 8 * * *"])


@pytest.mark.parametrize(
    ("changes", "pointer"),
    [
        ({"cron": "0 0 30 2 *"}, "/cron"),
        ({"cron": None, "calendar": [{"day": 30, "month": 2}]}, "/calendar"),
        ({"cron": None, "calendar": {"day": [1]}}, "/calendar/0/day/str"),
        ({"cron": "0 0 31 4,6,9,11 *"}, "/cron"),
        ({"cron": "61 * * * *"}, "/cron"),
        ({"cron": "* * * *"}, "/cron"),
        ({"cron": "* * * * * *"}, "/cron"),
        ({"cron": ""}, "/cron"),
        ({"cron": "x" * 10_000}, "/cron"),
        ({"cron": 5}, "/cron/0"),
        ({"every": 60}, "/every"),
        ({"cron": None}, "/cron"),
        ({"cron": None, "every": 0}, "/every"),
        ({"cron": None, "at": "2027-03-05T09:00:00"}, "/at/0"),
        ({"cron": None, "at": "2020-03-05T09:00:00Z"}, "/at"),
        ({"timezone": "Europe/Berln"}, "/timezone"),
        ({"timezone": "../../etc/passwd"}, "/timezone"),
        ({"catch_up": "everything"}, "/catch_up"),
        ({"overlap": "maybe"}, "/overlap"),
        ({"jitter": -1}, "/jitter"),
        ({"end_at": "2020-01-01T00:00:00Z"}, "/cron"),
        ({"exclude": ["christmas"]}, "/exclude"),
        ({"workflow": "Chores"}, "/workflow"),
        ({"workflow": "TripBooking", "input": {}}, "/input/traveller"),
        ({"catchup": "all"}, "/catchup"),
    ],
)
def test_what_cannot_be_kept_is_refused_where_it_is_wrong__SAS_039(
    operator: Program, changes: dict[str, Any], pointer: str
) -> None:
    assert pointers(operator.post("schedules", {**HOURLY, **changes}))[0] == pointer
    assert Schedule.objects.count() == 0


def test_a_rare_but_real_day_is_accepted_and_shown__SAS_039(operator: Program) -> None:
    assert made(operator, cron="0 0 29 2 *", timezone="UTC")["next_due"] == "2028-02-29T00:00:00Z"
    assert made(operator, cron="@yearly", timezone="UTC")["next_due"] == "2028-01-01T00:00:00Z"


def test_an_edit_needs_the_version_that_was_seen(operator: Program) -> None:
    path = f"schedules/{made(operator)['id']}"
    assert operator.ask("PATCH", path, {"jitter": 5}, {}).status_code == 428
    assert operator.ask("PATCH", path, {"jitter": 5}, {"If-Match": '"7"'}).status_code == 412
    edited = operator.ask("PATCH", path, {"jitter": 5, "every": 600}, {"If-Match": '"1"'})
    assert (edited.status_code, edited["ETag"]) == (200, '"2"')
    assert (edited.json()["jitter"], edited.json()["every"], edited.json()["cron"]) == (5, 600, [])
    assert operator.ask("PATCH", path, {"cron": "0 0 30 2 *"}, {"If-Match": "*"}).status_code == 422
    assert operator.get(path).json()["every"] == 600


def test_a_pause_has_a_note_and_an_author_and_can_be_ended(operator: Program) -> None:
    path = f"schedules/{made(operator)['id']}"
    paused = operator.ask("PATCH", path, {"paused": True, "note": "stocktaking"}, {"If-Match": "*"}).json()
    assert (paused["paused"], paused["pause_note"]) == (True, "stocktaking")
    assert paused["paused_by"] == f"client:{operator.user.get_username()}"
    resumed = operator.ask("PATCH", path, {"paused": False}, {"If-Match": '"2"'}).json()
    assert (resumed["paused"], resumed["pause_note"], resumed["paused_by"]) == (False, None, None)


def test_an_end_that_was_set_can_be_taken_away(operator: Program) -> None:
    schedule = made(operator, end_at="2027-03-05T00:00:00Z")
    path = f"schedules/{schedule['id']}"
    assert operator.ask("PATCH", path, {"end_at": None}, {"If-Match": "*"}).json()["end_at"] is None


def test_a_removed_schedule_is_gone(operator: Program) -> None:
    path = f"schedules/{made(operator)['id']}"
    assert operator.ask("DELETE", path, None, {}).status_code == 428
    assert operator.ask("DELETE", path, None, {"If-Match": '"1"'}).status_code == 204
    assert operator.get(path).status_code == 404
    assert operator.get("schedules").json()["results"] == []
    assert operator.ask("DELETE", path, None, {"If-Match": "*"}).status_code == 404


def test_each_due_time_can_be_asked_for(operator: Program, diary: Diary) -> None:
    schedule = made(operator, cron=EACH_MINUTE)
    diary.at(MORNING + 5 * MINUTE)
    diary.look()
    diary.look()
    path = f"schedules/{schedule['id']}/ticks"
    ticks = operator.get(path).json()["results"]
    assert [tick["due_at"][11:19] for tick in ticks] == [f"10:0{n}:00" for n in (5, 4, 3, 2, 1)]
    assert [(tick["outcome"], tick["reason"]) for tick in ticks[1:3]] == [("started", None), ("skipped", "superseded")]
    assert operator.get(ticks[0]["job_link"]).json()["id"] == ticks[0]["job"]
    assert len(operator.get(f"{path}?outcome=skipped").json()["results"]) == 3
    assert operator.get(f"{path}?outcome=lost").status_code == 400


def test_ticks_are_walked_in_pages_without_a_gap_or_a_double(operator: Program, diary: Diary) -> None:
    schedule = made(operator, cron=EACH_MINUTE)
    diary.at(MORNING + 25 * MINUTE)
    diary.look()
    met: list[str] = []
    path = f"schedules/{schedule['id']}/ticks?limit=10"
    while path:
        page = operator.get(path).json()
        met += [tick["due_at"] for tick in page["results"]]
        path = page["next"]
    assert met == sorted(set(met), reverse=True)
    assert len(met) == Tick.objects.count() == 25


def test_a_trigger_starts_a_job_now_and_twice_under_one_key_is_once(operator: Program) -> None:
    path = f"schedules/{made(operator)['id']}/triggers"
    answers = [operator.post(path, {"reason": "try"}, idempotency_key="t-1") for _ in range(2)]
    assert [answer.status_code for answer in answers] == [202, 202]
    assert answers[0].json() == answers[1].json()
    assert (answers[0].json()["kind"], answers[0].json()["outcome"]) == ("trigger", "started")
    assert answers[0]["Location"] == f"/api/v1/jobs/{Job.objects.get().pk}"


def test_a_backfill_is_shown_first_and_then_run(operator: Program) -> None:
    path = f"schedules/{made(operator)['id']}/backfills"
    body = {"from": "2027-03-04T06:00:00Z", "to": "2027-03-04T09:00:00Z"}
    shown = operator.post(path, {**body, "dry_run": True})
    assert (shown.status_code, shown.json()["ticks"], Job.objects.count()) == (200, [], 0)
    assert [time[11:16] for time in shown.json()["times"]] == ["06:00", "07:00", "08:00"]
    run = operator.post(path, body)
    assert (run.status_code, run.json()["times"]) == (202, shown.json()["times"])
    assert [tick["outcome"] for tick in run.json()["ticks"]] == ["started", "waiting", "waiting"]
    assert pointers(operator.post(path, {**body, "to": "2027-03-04T05:00:00Z"})) == ["/to"]


def test_a_preview_crosses_the_change_of_the_clocks_in_both_zones(diary: Diary) -> None:
    body = {"cron": "30 2 * * *", "timezone": "Europe/Berlin", "from": "2027-03-27T00:00:00Z", "count": 3}
    answer = newcomer("jobs:read").post("schedules/preview", body).json()
    assert answer["times"] == ["2027-03-27T01:30:00Z", "2027-03-28T01:00:00Z", "2027-03-29T00:30:00Z"]
    assert answer["local_times"][1] == "2027-03-28T03:00:00+02:00"
    assert answer["in_words"] == "At 02:30 every day (Europe/Berlin)"
    assert pointers(newcomer("jobs:read").post("schedules/preview", {"cron": "0 0 30 2 *"})) == ["/cron"]


def test_a_preview_tells_the_viewers_own_time_and_what_happens_when_clocks_change_next(diary: Diary) -> None:
    body = {"cron": "30 2 * * *", "timezone": "Europe/Berlin", "from": "2027-06-01T00:00:00Z", "count": 1}
    reader = newcomer("jobs:read")
    answer = reader.post("schedules/preview", {**body, "viewer_timezone": "Asia/Kathmandu"}).json()
    assert answer["viewer_times"] == ["2027-06-01T06:15:00+05:45"]
    change = answer["clock_change"]
    assert (change["at"], change["offset_before"], change["offset_after"]) == (
        "2027-10-31T01:00:00Z",
        "+02:00",
        "+01:00",
    )
    assert change["local_times"] == [
        *("2027-10-29T02:30:00+02:00", "2027-10-30T02:30:00+02:00", "2027-10-31T02:30:00+02:00"),
        *("2027-11-01T02:30:00+01:00", "2027-11-02T02:30:00+01:00", "2027-11-03T02:30:00+01:00"),
    ]
    without = reader.post("schedules/preview", {**body, "timezone": "Asia/Tokyo"}).json()
    assert (without["clock_change"], without["viewer_times"]) == (None, None)
    assert pointers(reader.post("schedules/preview", {**body, "viewer_timezone": "Mars"})) == ["/viewer_timezone"]


@pytest.mark.parametrize(
    ("reprocess", "max_active", "pointer"), [("all", None, "/reprocess"), ("none", 0, "/max_active")]
)
def test_a_backfill_that_cannot_be_is_refused_where_it_is_wrong(
    operator: Program, reprocess: str, max_active: int | None, pointer: str
) -> None:
    body = {"from": "2027-03-04T06:00:00Z", "to": "2027-03-04T09:00:00Z", "dry_run": True}
    path = f"schedules/{made(operator)['id']}/backfills"
    options = {"reprocess": reprocess, "max_active": max_active, "overlap": "allow"}
    assert pointers(operator.post(path, {**body, **options})) == [pointer]


def test_a_backfill_in_reverse_is_listed_so_and_runs_so_many_at_once(operator: Program) -> None:
    path = f"schedules/{made(operator)['id']}/backfills"
    body = {"from": "2027-03-04T06:00:00Z", "to": "2027-03-04T09:00:00Z", "overlap": "allow"}
    run = operator.post(path, {**body, "reverse": True, "max_active": 2}).json()
    assert [time[11:16] for time in run["times"]] == ["08:00", "07:00", "06:00"]
    assert [tick["outcome"] for tick in run["ticks"]] == ["started", "started", "waiting"]


def test_writing_needs_an_operators_token_and_reading_shows_what_is_ones_own(operator: Program) -> None:
    schedule = made(operator)
    reader = newcomer("jobs:read")
    assert reader.post("schedules", HOURLY).status_code == 403
    for method, path in [
        ("PATCH", ""),
        ("DELETE", ""),
        ("POST", "/triggers"),
        ("POST", "/backfills"),
        ("DELETE", "/backfills"),
    ]:
        answer = reader.ask(method, f"schedules/{schedule['id']}{path}", {}, {"If-Match": "*"})
        assert answer.status_code == 403
    assert reader.get(f"schedules/{schedule['id']}").status_code == 404
    assert reader.get("schedules").json()["results"] == []
    Schedule.objects.update(declaration={})
    assert len(reader.get("schedules").json()["results"]) == 1


def test_a_backfill_can_be_withdrawn_while_the_rest_of_it_waits(operator: Program, diary: Diary) -> None:
    path = f"schedules/{made(operator)['id']}/backfills"
    operator.post(path, {"from": "2027-03-04T06:00:00Z", "to": "2027-03-04T09:00:00Z"})
    assert operator.ask("DELETE", path, None, {}).status_code == 204
    diary.look()
    found = Schedule.objects.get()
    assert outcomes(found) == {"started": 1, "dropped withdrawn": 2}
    assert found.changes.latest("pk").data == {"due_times": 2}
    assert operator.ask("DELETE", path, None, {}).status_code == 204
    again = operator.post(path, {"from": "2027-03-04T06:00:00Z", "to": "2027-03-04T09:00:00Z"}).json()
    assert [time[11:16] for time in again["times"]] == ["07:00", "08:00"]


def test_another_clients_schedule_and_its_jobs_do_not_exist__SAS_106__SAS_108(operator: Program, diary: Diary) -> None:
    schedule = made(operator, cron=EACH_MINUTE)
    Schedule.objects.filter(pk=schedule["id"]).update(client_id=(owner := newcomer("jobs:read")).user.pk)
    diary.at(MORNING + MINUTE)
    diary.look()
    job = Job.objects.get()
    other = newcomer("jobs:read", "jobs:write")
    for path in (f"schedules/{schedule['id']}", f"schedules/{schedule['id']}/ticks", f"jobs/{job.pk}"):
        assert (other.get(path).status_code, owner.get(path).status_code) == (404, 200)
    for method, path in [
        ("PATCH", ""),
        ("DELETE", ""),
        ("POST", "/triggers"),
        ("POST", "/backfills"),
        ("DELETE", "/backfills"),
    ]:
        answer = other.ask(method, f"schedules/{schedule['id']}{path}", {}, {"If-Match": "*"})
        assert answer.status_code == 403
    assert other.get("jobs").json()["results"] == other.get("schedules").json()["results"] == []
    Schedule.objects.update(client_id=None)
    Job.objects.update(client_id=None)
    assert (owner.get(f"jobs/{job.pk}").status_code, operator.get(f"jobs/{job.pk}").status_code) == (404, 200)


@pytest.mark.parametrize("is_deleted", [True, False])
def test_the_schedules_of_a_client_that_is_gone_stop_and_say_why__SAS_102(
    operator: Program, diary: Diary, is_deleted: bool
) -> None:
    schedule, other = made(operator, cron=EACH_MINUTE), diary.make(EACH_MINUTE)
    diary.at(MORNING + MINUTE)
    diary.look()
    if is_deleted:
        operator.user.delete()
    else:
        operator.user.is_active = False
        operator.user.save()
    diary.look_each(MINUTE, MORNING + 3 * MINUTE)
    found = Schedule.objects.get(pk=schedule["id"])
    assert (found.paused_by, found.pause_note) == ("scheduler", "Its client is gone, or may not sign in any more.")
    assert outcomes(found) == {"started": 1, "skipped paused": 2}
    assert outcomes(other) == {"started": 3}


def test_a_schedule_that_does_not_exist_is_not_found(operator: Program) -> None:
    path = f"schedules/{uuid.uuid4()}"
    assert operator.get(path).status_code == 404
    assert operator.post(f"{path}/triggers", {}).status_code == 404
    assert operator.get("schedules/tomorrow").status_code == 404
