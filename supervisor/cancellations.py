"""A whole group is given up: all jobs that wait because of one outage are cancelled, with undo or without, on one word.

The word is a row, with a row for each of its jobs. A thread of the supervisor's works them off one by one, each by a job's
own verb in a transaction of its own; whoever dies in the middle of it leaves rows, and the next second goes on with them.
"""

import logging
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db import InterfaceError, InternalError, OperationalError, connection, transaction
from django.db.models import Count, F, Q

from supervisor.models import GroupCancellation, GroupMember, Incident
from workflows import transitions, verbs
from workflows.clock import now
from workflows.exceptions import InvalidInput, NotFound, SagError, WrongState
from workflows.models import Breaker, Job, Step
from workflows.querysets import StepQuerySet
from workflows.states import JobState, Role
from workflows.transitions import in_transaction

logger = logging.getLogger(__name__)

_PAGE = 200
_KEEP = timedelta(days=90)
_FAILURES_ALLOWED = 5
_TOLD_REFUSALS = 20
# It is away, in the middle of a failover (read only), or had no time for us.
_OF_THE_DATABASE = (OperationalError, InterfaceError, InternalError)

Outcome = GroupMember.Outcome

_under_way = threading.Lock()


def waiting(agent: str, as_of: datetime | None = None) -> StepQuerySet:
    """The steps of jobs that can be cancelled and wait because of this agent, or did so at that moment and still do.

    Those that will be parked within a second and the one that is just being tried are among them. Paused jobs are not:
    they wait for whoever paused them.
    """
    trial = Breaker.objects.filter(agent=agent, phase=Breaker.Phase.TRIAL).values_list("trial_step_id", flat=True)
    tried = Step.objects.filter(pk=trial.first() or 0)
    waits = Step.objects.parked(agent) | Step.objects.to_park(agent) | tried
    steps = waits.filter(role=Role.FORWARD, job__state=JobState.RUNNING).of_moving_jobs()
    if as_of is None:
        return steps
    return steps.filter(Q(parked_since__lte=as_of) | Q(parked_since__isnull=True, run_after__lte=as_of))


def number_of_jobs(agent: str) -> int:
    """How many jobs would be cancelled now."""
    return waiting(agent).order_by().values("job_id").distinct().count()


@in_transaction
def ask(
    incident_id: int, *, undo: bool, actor: str, reason: str = "", as_of: datetime | None = None
) -> GroupCancellation:
    """Have all jobs cancelled that wait because of this incident. To ask the same again while it goes on changes nothing.

    `as_of`: only those that waited then, which is what a person was shown. Raises WrongState when there are none.
    """
    incident = Incident.objects.select_for_update(no_key=True).filter(pk=incident_id).first()
    if incident is None:
        raise NotFound(f"There is no incident {incident_id}.")
    if not undo and not reason.strip():
        fault = "to cancel without undo needs a reason"
        raise InvalidInput(f"The request is refused: {fault}.", errors=[{"pointer": "/reason", "message": fault}])
    going_on = incident.cancellations.filter(finished_at__isnull=True).first()
    if going_on is not None:
        return _same(going_on, undo)
    if incident.closed_at is not None:
        raise WrongState(f"The outage of {incident.agent} is over: nobody waits because of it.")
    jobs = list(waiting(incident.agent, as_of).order_by().values_list("job_id", flat=True).distinct())
    if not jobs:
        raise WrongState(f"No job that could be cancelled waits for {incident.agent}.")
    asked = GroupCancellation.objects.create(incident=incident, undo=undo, actor=actor, reason=reason, asked_at=now())
    members = [GroupMember(cancellation=asked, job_id=job_id) for job_id in sorted(jobs)]
    GroupMember.objects.bulk_create(members, batch_size=1000)
    Incident.objects.filter(pk=incident.pk, acknowledged_at__isnull=True).update(
        acknowledged_at=now(), acknowledged_by=actor
    )
    how = "with undo" if undo else "without undo"
    logger.warning("%s has %s jobs that wait for %s cancelled %s", actor, len(jobs), incident.agent, how)
    return asked


def _same(going_on: GroupCancellation, undo: bool) -> GroupCancellation:
    if going_on.undo != undo:
        how = "with undo" if going_on.undo else "without undo"
        raise WrongState(f"{going_on.actor} has these jobs cancelled {how}, and that goes on.")
    return going_on


# --- working it off --------------------------------------------------------------------------------------------------


def work_off_aside() -> threading.Thread | None:
    """`work_off` in a thread of its own, since thousands take minutes. None while one runs, and when there is nothing."""
    if not GroupCancellation.objects.filter(finished_at__isnull=True).exists():
        return None
    if not _under_way.acquire(blocking=False):
        return None
    thread = threading.Thread(target=_work_off_and_leave, name="sag-cancellations", daemon=True)
    thread.start()
    return thread


def _work_off_and_leave() -> None:
    try:
        work_off()
    except Exception:  # the next second looks again
        logger.exception("the cancellation of a group could not go on")
    finally:
        connection.close()
        _under_way.release()


def work_off() -> int:
    """Each job that has not had its turn. How many had it; those whose jobs are locked have it next time."""
    done = 0
    for member_id in _to_do():
        try:
            done += bool(_cancel(member_id))
        except _OF_THE_DATABASE:  # the database's, and none of this job
            logger.exception("a job of a group could not be cancelled this time")
            connection.close_if_unusable_or_obsolete()
        except Exception as error:  # one poison row must not stop the others
            logger.exception("a job of a group could not be cancelled")
            _note_failure(member_id, error)
    _finish()
    return done


def _to_do() -> Iterator[int]:
    last = 0
    to_do = GroupMember.objects.filter(outcome="").order_by("pk").values_list("pk", flat=True)
    while page := list(to_do.filter(pk__gt=last)[:_PAGE]):
        yield from page
        last = page[-1]


@in_transaction
def _cancel(member_id: int) -> bool | None:
    """None when its job is locked, or another supervisor has it in its hands."""
    member = GroupMember.objects.select_related("cancellation__incident").get(pk=member_id)
    job = transitions.lock(member.job_id, unless_locked=True)
    if job is None and Job.objects.filter(pk=member.job_id).exists():
        return None
    if not GroupMember.objects.select_for_update(no_key=True).filter(pk=member_id, outcome="").exists():
        return False
    outcome, why = _outcome_of(member.cancellation, job)
    GroupMember.objects.filter(pk=member_id).update(outcome=outcome, why=why)
    return True


def _outcome_of(asked: GroupCancellation, job: Job | None) -> tuple[Outcome, str]:
    """Cancel a locked job as its own page would."""
    if job is None:
        return Outcome.ENDED, "It is not stored any more."
    if job.state != JobState.RUNNING or job.stopping_at is not None:
        return Outcome.ENDED, "It was stopping." if job.stopping_at else f"It was {job.state}."
    reason = asked.reason or f"{asked.incident.agent} is away ({asked.incident.cause})."
    try:
        with transaction.atomic():
            verbs.cancel(job.pk, undo=asked.undo, actor=asked.actor, reason=reason)
    except SagError as refusal:
        return Outcome.REFUSED, refusal.message
    return Outcome.CANCELLED, ""


def _note_failure(member_id: int, error: Exception) -> None:
    """After some of them it is left to a person."""
    waiting = GroupMember.objects.filter(pk=member_id, outcome="")
    waiting.update(failures=F("failures") + 1)
    why = f"{type(error).__name__}: {error}"
    waiting.filter(failures__gte=_FAILURES_ALLOWED).update(outcome=Outcome.REFUSED, why=why)


def _finish() -> None:
    for asked in GroupCancellation.objects.filter(finished_at__isnull=True):
        if not asked.members.filter(outcome="").exists():
            GroupCancellation.objects.filter(pk=asked.pk, finished_at__isnull=True).update(finished_at=now())
            logger.warning("the cancellation that %s asked for is done: %s", asked.actor, progress(asked))


def forget_old() -> None:
    """The jobs' own histories say what was done, and have ages of their own."""
    GroupCancellation.objects.filter(finished_at__lt=now() - _KEEP).delete()


# --- how far it is ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Progress:
    """How many jobs of a group are cancelled, had ended by themselves, were refused (`refusals`: some of them), are left."""

    jobs: int
    cancelled: int
    ended: int
    refused: int
    left: int
    refusals: list[GroupMember]

    def __str__(self) -> str:
        return f"{self.cancelled} cancelled, {self.ended} had ended, {self.refused} refused, {self.left} left"


def progress(asked: GroupCancellation) -> Progress:
    found = Counter(dict(asked.members.values_list("outcome").annotate(number=Count("pk"))))
    refused = asked.members.filter(outcome=Outcome.REFUSED).order_by("pk")[:_TOLD_REFUSALS]
    return Progress(
        jobs=found.total(),
        cancelled=found[Outcome.CANCELLED],
        ended=found[Outcome.ENDED],
        refused=found[Outcome.REFUSED],
        left=found[""],
        refusals=list(refused) if found[Outcome.REFUSED] else [],
    )
