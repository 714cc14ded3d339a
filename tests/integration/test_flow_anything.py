"""Whatever a plan is made of, and whatever happens to its job: the books agree at every moment, and it comes to an end."""

import random
import uuid
from contextlib import suppress
from datetime import timedelta
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agents import Defer, InDoubt, Permanent, Snooze, Transient
from supervisor import sweep as supervision
from tests.integration.engine import STEPS, Engine, check_books, start
from workflows import Retry, Workflow, child, findings, item, signals, step, transitions, verbs
from workflows import given as told
from workflows.exceptions import SagError
from workflows.models import Event, Job, Signal, Step
from workflows.plans.plan import Plan, PlanStep

FATES = ["done", "done", "done", "done", "transient", "permanent", "doubt", "snooze", "defer", "dies"]
UNDO_FATES = ["done", "done", "done", "done", "transient", "permanent", "doubt"]
KINDS = ["call", "call", "call", "timer", "signal", "child", "list", "list", "children"]
DEEDS = ["answer"] * 12 + ["lose", "time", "time", "sweep", "signal", "pause", "resume", "cancel", "retry", "callback"]


class AnyInfant(Workflow):
    f = step("kiosk.f", compensation="kiosk.undo_f", retry=Retry(attempts=2))
    g = step("kiosk.g", when=told["more"], after=[f])


class AnyCrowd(Workflow):
    """Only to see that a child over a list is made of the same stuff."""

    kids = child(AnyInfant, each=told["list"], at_once=2, input={"more": item})


def _planned(name: str, **options: Any) -> PlanStep:
    fixed: dict[str, Any] = {
        "operation": f"shop.{name[0]}",
        "compensation": None,
        "probe": None,
        "input": {},
        "after": (),
        "timeout": timedelta(seconds=30),
        "retry": Retry(attempts=2),
        "undo_retry": Retry(attempts=2),
    }
    return PlanStep(name=name, **fixed | options)


@st.composite
def plans(draw: Any) -> Plan:
    """Up to five steps of any kind, some with conditions or alternatives; each waits for any of those before it."""
    steps: list[PlanStep] = []
    for name in STEPS[: draw(st.integers(1, 5))]:
        primaries = [earlier.name for earlier in steps if earlier.instead_of is None and draw(st.booleans())]
        after = tuple(earlier.name for earlier in steps if earlier.name.partition(".")[0] in primaries)
        kind = draw(st.sampled_from(KINDS))
        options = _options(draw, name, kind)
        if draw(st.integers(0, 3)) == 0:
            where = {"$given": ["yes" if draw(st.booleans()) else "no"]}
            options["when"] = {"$not": where} if draw(st.booleans()) else where
            options["unmet"] = draw(st.sampled_from(["skip", "skip", "cascade", "fail"]))
        if kind != "timer":
            options["on_failure"] = draw(st.sampled_from(["compensate", "compensate", "hold", "ignore"]))
        steps.append(_planned(name, after=after, **options))
        if kind in ("call", "signal") and draw(st.integers(0, 2)) == 0:
            undo = {"compensation": f"shop.undo_{name}"}
            steps.append(_planned(f"{name}.otherwise", after=(name,), instead_of=name, **undo))
    return Plan(
        workflow=f"Any{uuid.uuid4().hex[:8]}",
        version=1,
        compensate_within=None,
        steps=tuple(steps),
        deadline=timedelta(minutes=30) if draw(st.integers(0, 3)) == 0 else None,
        after_failure="shop.g" if draw(st.integers(0, 3)) == 0 else None,
    )


def _options(draw: Any, name: str, kind: str) -> dict[str, Any]:
    undo = f"shop.undo_{name}" if draw(st.integers(0, 3)) else None
    spread = {
        "each": {"$given": ["list"]},
        "at_once": draw(st.sampled_from([None, 1, 2])),
        "tolerate": draw(st.sampled_from([0, 1, 0.5])),
    }
    match kind:
        case "timer":
            return {"kind": "timer", "operation": "", "delay": draw(st.sampled_from([0, 30, 90]))}
        case "signal":
            wait = draw(st.sampled_from([None, timedelta(seconds=60)]))
            return {"kind": "signal", "operation": "", "wait": wait}
        case "child" | "children":
            policy = draw(st.sampled_from(["cancel", "wait", "abandon"]))
            options = {"kind": "child", "operation": "", "child": "AnyInfant", "on_parent_end": policy}
            return options | (spread | {"input": {"more": {"$item": []}}} if kind == "children" else {})
        case "list":
            return {"compensation": undo, **spread}
    return {"compensation": undo, "probe": "shop.find" if draw(st.booleans()) else None}


@st.composite
def stories(draw: Any) -> dict[str, Any]:
    return {
        "plan": draw(plans()),
        "list": draw(st.sampled_from([[], [1], [0, 1, 2], [1, 0, 1, 0, 1]])),
        "deeds": draw(st.lists(st.sampled_from(DEEDS), max_size=60)),
        "seed": draw(st.integers(0, 2**32)),
    }


class Play:
    """One job and all that happens to it."""

    def __init__(self, engine: Engine, story: dict[str, Any]) -> None:
        self.engine = engine
        self.luck = random.Random(story["seed"])
        self.kind = False
        for agent in ("shop", "kiosk"):
            for name in STEPS:
                engine.says(f"{agent}.{name}", lambda call: self._answer(FATES))
                engine.says(f"{agent}.undo_{name}", lambda call: self._answer(UNDO_FATES))
        engine.says("shop.find", lambda call: self.luck.choice([None, {"found": True}]))
        engine.rings.clear()
        self.job = start(story["plan"], {"yes": True, "list": story["list"]})

    def _answer(self, fates: list[str]) -> Any:
        match "done" if self.kind else self.luck.choice(fates):
            case "transient":
                raise Transient("busy")
            case "permanent":
                raise Permanent("no")
            case "doubt":
                raise InDoubt("no answer")
            case "snooze":
                raise Snooze(20, "not yet")
            case "defer":
                raise Defer(within=timedelta(seconds=90))
        return {"ok": self.luck.random()}

    def do(self, deed: str) -> None:
        with suppress(SagError):  # refused, with what is true now
            getattr(self, deed)()

    def answer(self) -> None:
        if not self.engine.rings:
            return
        ring = self.engine.rings[self.luck.randrange(len(self.engine.rings))]
        self.engine.rings.remove(ring)
        if not self.kind and ring[0].endswith("work") and self.luck.random() < 0.05:
            transitions.claim(ring[2][1], token=uuid.uuid4(), worker="the one that dies")
        else:
            self.engine.answer(*ring)

    def lose(self) -> None:
        if self.engine.rings:
            self.engine.rings.popleft()

    def time(self) -> None:
        self.engine.ahead(self.luck.choice([1, 20, 70]))
        supervision.wake_due()
        supervision.ring_due()

    def sweep(self) -> None:
        assert self.engine.sweep().problems == []

    def signal(self) -> None:
        waiting = [planned.name for planned in Plan.from_json(self.job.plan).steps if planned.kind == "signal"]
        if waiting:
            signals.send(self.job.pk, self.luck.choice(waiting), self.luck.random(), actor="client:x")

    def callback(self) -> None:
        deferred = Step.objects.filter(state="Running", kind="call", complete_by=None, items_total=None)
        if step := deferred.order_by("?").first():
            word = self.luck.choice([{"result": 1}, {"error": {"kind": "transient"}}, {"error": {"kind": "permanent"}}])
            signals.call_back(signals.token_of(step.pk), word)

    def pause(self) -> None:
        verbs.pause(self.job.pk, actor="operator:x", reason="wait")

    def resume(self) -> None:
        verbs.resume(self.job.pk, actor="operator:x", reason="go on")

    def cancel(self) -> None:
        if self.luck.random() < 0.3:
            verbs.cancel(self.job.pk, undo=self.luck.random() < 0.7, actor="client:x", reason="enough")

    def retry(self) -> None:
        escalated = Step.objects.filter(remedy="escalate").order_by("pk").first()
        if escalated is not None:
            verbs.retry_step(escalated.job_id, escalated.address, actor="operator:x", reason="mended")
        else:
            verbs.retry_job(self.job.pk, actor="operator:x", reason="mended")

    def check(self) -> None:
        for job in Job.objects.all():
            check_books(job)
            for fan in Step.objects.filter(job=job, role="forward", state="Running", items_total__isnull=False):
                _check_at_once(job, fan)

    def end(self) -> None:
        """Everybody is well again, and says what is waited for: then all comes to an end, or to a person."""
        self.kind = True
        for job in Job.objects.filter(paused_at__isnull=False):
            verbs.resume(job.pk, actor="operator:x", reason="go on")
        for _ in range(60):
            while self.engine.rings:
                self.answer()
            self.signal_all()
            self.engine.ahead(70)
            supervision.wake_due()
            self.sweep()
            supervision.ring_due()
            if not self.engine.rings and all(map(_has_ended, Job.objects.all())):
                return
        left = [job for job in Job.objects.all() if not _has_ended(job)]
        raise AssertionError([(job, list(Step.objects.filter(job=job).values())) for job in left])

    def signal_all(self) -> None:
        for one in Step.objects.filter(kind="signal", state="Running"):
            signals.send(one.job_id, one.name, "at last", actor="client:x")


def _check_at_once(job: Job, fan: Step) -> None:
    at_once = Plan.from_json(job.plan).steps[fan.place].at_once
    items = Step.objects.filter(parent=fan).exclude(transitions.ended_item("forward"))
    under_way = items.filter(state="Running").count()
    assert at_once is None or under_way <= at_once, f"{under_way} items of {fan.name} run at once"


def _has_ended(job: Job) -> bool:
    """Ended, or all that is left of it stands before a person, or waits behind one, here or in a child."""
    if job.is_terminal:
        return not Step.objects.filter(job=job, role="recheck", state__in=["NotStarted", "Running"]).exists()
    moving = Step.objects.filter(job=job, state="Running", complete_by__isnull=False).exists()
    return not moving and Job.objects.needs_person().exists()


def _check_history(job: Job) -> None:
    """Every step is done, skipped, released at most once, unless it was taken up again."""
    events = list(Event.objects.filter(job=job).order_by("seq").values_list("kind", "step"))
    for address in {address for _, address in events if address}:
        kinds = [kind for kind, where in events if where == address]
        ends = sum(kind in ("step.completed", "step.settled") for kind in kinds)
        assert ends <= 1 + kinds.count("step.retried"), (address, kinds)
    for one in Step.objects.filter(job=job, state="Skipped").prefetch_related("attempts"):
        open_doubt = any(attempt.in_doubt and not attempt.resolved_by for attempt in one.attempts.all())
        assert not open_doubt, f"{one.address} was skipped in doubt"


@settings(
    max_examples=60,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(story=stories())
def test_a_job_of_any_kinds_of_steps_ends_or_stands_before_a_person_and_its_books_agree(
    engine: Engine, story: dict[str, Any]
) -> None:
    """SAS-002, SAS-020, SAS-059, SAS-060"""
    Job.objects.all().delete()
    Signal.objects.all().delete()
    play = Play(engine, story)
    play.check()
    for deed in story["deeds"]:
        play.do(deed)
        play.check()
    play.end()
    play.check()
    for job in Job.objects.all():
        _check_history(job)
        if job.state == "Completed":
            left = Step.objects.filter(job=job, parent=None, superseded=False, state__in=["NotStarted", "Running"])
            assert not left.exists()
    assert findings.heal(play.job.pk) in (True, False)


def test_children_over_a_list_are_part_of_this(engine: Engine) -> None:
    """The plan above, written as a team would."""
    job = start(AnyCrowd, {"list": [True, False, True]})
    engine.drain()
    job.refresh_from_db()
    assert job.state == "Completed"
    assert engine.asked().count("kiosk.g") == 2
    check_books(job)
