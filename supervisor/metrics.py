"""What Prometheus is told: how the store stands at the moment of the question.

Nothing is counted in a process, so it does not matter which of them is asked, how many there are, or which have died. Each
question goes to an index, counts as far as `standing.COUNTED` and costs what it costs however much has ended long ago.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime, timedelta

from django.db import Error, connection, transaction
from django.http import HttpRequest, HttpResponse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe
from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from supervisor import leadership
from supervisor.leadership import Duty
from supervisor.models import Incident, Sweep, Term
from workflows import standing
from workflows.clock import now
from workflows.models import Job, Schedule, Tick
from workflows.states import LIVE_JOB_STATES

_PATIENCE = "2s"  # for each question: nobody waits for figures of a store that has none to give
_LATE = timedelta(seconds=10)
_TICKS = 1000
_LATELY = timedelta(hours=1)


@require_safe
@never_cache
def metrics(request: HttpRequest) -> HttpResponse:
    """The figures in the format that is asked for; 503 while the database does not give them."""
    encode, kind = choose_encoder(request.headers.get("Accept", ""))
    try:
        return HttpResponse(encode(_REGISTRY), content_type=kind)
    except Error:
        return HttpResponse("The database does not answer.\n", content_type="text/plain", status=503)


def exposed() -> bytes:
    """All figures as text."""
    encode, _ = choose_encoder("")
    return encode(_REGISTRY)


class _Store(Collector):
    def collect(self) -> Iterable[GaugeMetricFamily]:
        with transaction.atomic():
            with connection.cursor() as cursor:
                cursor.execute(f"SET LOCAL statement_timeout = '{_PATIENCE}'")
            present = now()
            return [metric for ask in _QUESTIONS for metric in ask(present)]


_REGISTRY = CollectorRegistry(auto_describe=False)
_REGISTRY.register(_Store())


def _jobs(_: datetime) -> Iterator[GaugeMetricFamily]:
    states = {
        str(state): standing.counted(Job.objects.filter(state=state).order_by("state", "-created_at", "-id"))
        for state in LIVE_JOB_STATES
    }
    yield _by("sag_jobs", "Live jobs, by state", "state", states)
    needy = standing.counted(Job.objects.needs_person().order_by())
    yield _gauge("sag_jobs_need_person", "Jobs that need a person", needy)


def _agents(_: datetime) -> Iterator[GaugeMetricFamily]:
    found = {one.agent.name: one for one in standing.of_agents()}
    ready, running, parked = (
        {name: getattr(one, which) for name, one in found.items()} for which in ("ready", "running", "parked")
    )
    yield _by("sag_steps_ready", "Steps that may start and wait for a worker", "agent", ready)
    yield _by("sag_steps_running", "Steps in the hands of a worker", "agent", running)
    yield _by("sag_steps_parked", "Steps that wait until their service answers again", "agent", parked)
    parks = {name: int(one.breaker is not None and one.breaker.parks) for name, one in found.items()}
    yield _by("sag_breaker_parks", "1 while the service is taken to be away", "agent", parks)
    calls = GaugeMetricFamily("sag_calls", "How the calls of the last moments ended", labels=["agent", "outcome"])
    for name, one in found.items():
        for outcome, number in one.calls.items():
            calls.add_metric([name, outcome], number)
    yield calls


def _waiting(present: datetime) -> Iterator[GaugeMetricFamily]:
    oldest = {queue: (present - since).total_seconds() for queue, since in standing.oldest_ready().items()}
    yield _by("sag_oldest_ready_seconds", "How long the oldest ready step has been waiting", "queue", oldest)
    yield _by("sag_workers_alive", "Workers that were heard of lately", "queue", standing.workers_alive())


def _outages(_: datetime) -> Iterator[GaugeMetricFamily]:
    going_on = Incident.objects.filter(closed_at__isnull=True).count()
    yield _gauge("sag_incidents_open", "Outages that go on", going_on)


def _sweeps(present: datetime) -> Iterator[GaugeMetricFamily]:
    last = Sweep.objects.order_by("-finished_at").first() or Sweep()
    yield _gauge("sag_sweep_age_seconds", "Since the last sweep ended", _age(last.finished_at, present))
    yield _gauge(
        "sag_sweep_interval_seconds", "How often there is to be one", leadership.every(Duty.SWEEP).total_seconds()
    )
    yield _gauge("sag_sweep_found", "What the last sweep found to be done", last.found)
    yield _gauge("sag_sweep_acted", "What the last sweep changed", last.acted)
    yield _gauge("sag_sweep_failed", "Rows that the last sweep could not handle", last.failed)
    yield _gauge("sag_observe_only", "1 while the supervisor changes nothing", int(last.observed))


def _duties(present: datetime) -> Iterator[GaugeMetricFamily]:
    done = dict(Term.objects.values_list("duty", "done_at"))
    ages = {str(duty): _age(done.get(duty), present) for duty in Duty}
    yield _by("sag_duty_age_seconds", "Since a duty of the supervisor was last done", "duty", ages)
    often = {str(duty): leadership.every(duty).total_seconds() for duty in Duty}
    yield _by("sag_duty_interval_seconds", "How often it is to be done", "duty", often)


def _schedules(present: datetime) -> Iterator[GaugeMetricFamily]:
    overdue = standing.counted(Schedule.objects.due().filter(next_due__lt=present - _LATE).order_by("next_due"))
    yield _gauge("sag_schedules_overdue", "Schedules with a due time that nobody opened", overdue)
    newest = Tick.objects.order_by("-pk").values_list("outcome", "reason", "decided_at")[:_TICKS]
    missed = Counter(
        reason or outcome
        for outcome, reason, decided_at in newest
        if outcome in (Tick.Outcome.SKIPPED, Tick.Outcome.DROPPED) and decided_at > present - _LATELY
    )
    yield _by("sag_ticks_missed", "Due times of the last hour that started no job", "reason", missed)


_QUESTIONS: tuple[Callable[[datetime], Iterator[GaugeMetricFamily]], ...] = (
    _jobs,
    _agents,
    _waiting,
    _outages,
    _sweeps,
    _duties,
    _schedules,
)


def _age(since: datetime | None, present: datetime) -> float:
    """In seconds; what never was is infinitely long ago, so that an alert on its age fires."""
    return math.inf if since is None else (present - since).total_seconds()


def _gauge(name: str, about: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, f"{about}.", value=value)


def _by(name: str, about: str, label: str, values: Mapping[str, float]) -> GaugeMetricFamily:
    metric = GaugeMetricFamily(name, f"{about}.", labels=[label])
    for key, value in values.items():
        metric.add_metric([key], value)
    return metric
