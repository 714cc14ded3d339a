"""Storms: a service that is away is one incident, not a thousand failed steps.

When enough different steps of an agent fail alike, its breaker opens for all workers: what is ready is parked, nothing is
charged, and one incident says what is going on. After a cool-down one step is let through; if the service answered it, the
others follow, so many a second, and the incident closes by itself.
"""

import logging
from collections.abc import Iterable
from datetime import datetime, timedelta
from functools import partial

from django.db import Error, connection, transaction
from django.db.models import Min

from supervisor.budget import OK, RETRY, Counts, Outage, outage, retry_is_within_budget
from supervisor.models import Incident
from supervisor.record import pass_over
from workflows import findings, transitions
from workflows.clock import now
from workflows.conf import conf
from workflows.exceptions import WrongState
from workflows.models import Breaker, CallCount, Step
from workflows.states import ErrorKind, StepState
from workflows.transitions import in_transaction

logger = logging.getLogger(__name__)

_PARKED_AT_ONCE = 1000
_KEEP_COUNTS = timedelta(minutes=10)
# Failures that may be the service's own: it did not answer, or said that it cannot now.
OF_SERVICE = (ErrorKind.TRANSIENT, ErrorKind.IN_DOUBT)


def counts_of(agent: str, since: datetime) -> Counts:
    """The calls of this agent since then."""
    return _sum(CallCount.objects.filter(agent=agent, slice_at__gte=since))


def _sum(rows: Iterable[CallCount]) -> Counts:
    calls: dict[str, int] = {}
    steps: dict[str, set[int]] = {}
    for row in rows:
        calls[row.word] = calls.get(row.word, 0) + row.count
        steps.setdefault(row.word, set()).update(row.steps)
    return Counts(
        window=timedelta(seconds=conf.breaker_window),
        calls=calls,
        steps={word: len(ids) for word, ids in steps.items()},
    )


def parks(step: Step) -> Breaker | None:
    """The breaker that keeps this failed step from being tried again now, and its failure from being charged.

    Called under its job's lock, with a failure of the service: opens the breaker when this was one too many.
    """
    if step.error_kind not in OF_SERVICE or not step.agent:
        return None
    with transaction.atomic():
        breaker = Breaker.objects.select_for_update(no_key=True).filter(agent=step.agent).first()
        if breaker is not None and breaker.parks and breaker.phase != Breaker.Phase.RELEASING:
            if breaker.trial_step_id == step.pk:
                _trial_failed(breaker, step)
            return breaker
        moment = now()
        since = moment - timedelta(seconds=conf.breaker_window)
        if breaker is not None and breaker.changed_at > since:
            since = breaker.changed_at
        found = _outage(step.agent, since, moment)
        if found is None:
            return None
        if breaker is None:
            breaker = transitions.lock_new_breaker(step.agent)
            if breaker.parks:  # another failure of the same moment has opened it
                return breaker
        return _open(step, found, moment)


def _outage(agent: str, since: datetime, moment: datetime) -> Outage | None:
    """Of the whole window, or of its last moments alone: where thousands of calls went well just before, their share would
    hide an outage until those that met it had used up their attempts.
    """
    rows = list(CallCount.objects.filter(agent=agent, slice_at__gte=since))
    lately = timedelta(seconds=transitions.CALL_SLICE)
    for begins in (since, moment - 2 * lately, moment - lately):
        counts = _sum(row for row in rows if row.slice_at >= begins)
        if found := outage(counts, steps=conf.breaker_steps, share=conf.breaker_share):
            return found
    return None


def _open(step: Step, found: Outage, moment: datetime) -> Breaker:
    evidence = {"failures": found.failures, "calls": found.calls, "steps": found.steps, "window": conf.breaker_window}
    cooldown = timedelta(seconds=conf.breaker_cooldown)
    transitions.set_breaker(
        step.agent,
        phase=Breaker.Phase.OPEN,
        parks=True,
        cause=found.cause,
        message=step.error_message,
        evidence=evidence,
        opened_at=moment,
        trial_at=moment + cooldown,
        cooldown=cooldown,
        trials=0,
        trial_step_id=None,
    )
    if not Incident.objects.filter(agent=step.agent, closed_at__isnull=True).exists():
        Incident.objects.create(
            agent=step.agent, cause=found.cause, message=step.error_message, evidence=evidence, opened_at=moment
        )
    said = "the breaker of agent %s opens: %s of %s calls failed (%s)"
    opened = partial(logger.warning, said, step.agent, found.failures, found.calls, found.cause)
    transaction.on_commit(opened)  # a supervisor that only observes opens it, and takes that back
    return Breaker.objects.get(agent=step.agent)


def _trial_failed(breaker: Breaker, step: Step) -> None:
    cooldown = min(breaker.cooldown * 2, timedelta(seconds=conf.breaker_cooldown_cap))
    transitions.set_breaker(
        breaker.agent,
        phase=Breaker.Phase.OPEN,
        cooldown=cooldown,
        trial_at=now() + cooldown,
        trial_step_id=None,
        message=step.error_message,
    )


def retry_within_budget(agent: str) -> bool:
    """Whether one more retry is within the agent's budget, and if so, count it."""
    since = now() - timedelta(seconds=conf.breaker_window)
    within = retry_is_within_budget(counts_of(agent, since), share=conf.retry_share, least=conf.retry_least)
    if within:
        transitions.count_calls(agent, RETRY)
    return within


# --- every second ----------------------------------------------------------------------------------------------------


def tend() -> None:
    """Park what became ready, try the service now and then, let the others go once it answers, and say it is over.

    Who is let go is rung for as any ready step is. A breaker that cannot be tended stops no other.
    """
    for agent in Breaker.objects.filter(parks=True).order_by("agent").values_list("agent", flat=True):
        try:
            _park(agent)
            _end_long_waits(agent)
            _tend(agent)
        except Exception as error:  # one breaker must not stop the others, nor the rings that come after
            logger.exception("the breaker of agent %s could not be tended", agent)
            if isinstance(error, Error):
                connection.close_if_unusable_or_obsolete()
    transitions.unpark_forgotten()
    transitions.forget_calls(now() - _KEEP_COUNTS)


@transitions.in_transaction
def _park(agent: str) -> None:
    breaker = _locked(agent)
    if breaker is not None:
        transitions.park(agent, _PARKED_AT_ONCE, admitted=breaker.phase == Breaker.Phase.OPEN)


@transitions.in_transaction
def _tend(agent: str) -> None:
    breaker = _locked(agent)
    if breaker is None:
        return
    match breaker.phase:
        case Breaker.Phase.OPEN:
            _try(breaker)
        case Breaker.Phase.TRIAL:
            _look_at_trial(breaker)
        case Breaker.Phase.RELEASING:
            _release(breaker)


def _locked(agent: str) -> Breaker | None:
    """One supervisor at a time: two would let two trials through, and park behind one that has just closed it."""
    breakers = Breaker.objects.select_for_update(no_key=True, skip_locked=True)
    return breakers.filter(agent=agent, parks=True).first()


def _try(breaker: Breaker) -> None:
    if breaker.trial_at is not None and breaker.trial_at > now():
        return
    let_through = transitions.admit(breaker.agent, 1)
    if let_through:
        transitions.set_breaker(
            breaker.agent, phase=Breaker.Phase.TRIAL, trial_step_id=let_through[0], trials=breaker.trials + 1
        )
    elif not Step.objects.parked(breaker.agent).of_moving_jobs().exists():
        _close(breaker)  # nobody waits; the next call is the trial


def _look_at_trial(breaker: Breaker) -> None:
    """The service has answered when the step is done, or was refused for good: that too is an answer."""
    step = Step.objects.filter(pk=breaker.trial_step_id or 0).first()
    if step is not None and _is_under_way(step):
        return
    answered = step is not None and (step.state == StepState.COMPLETED or step.error_kind == ErrorKind.PERMANENT)
    if answered:
        transitions.set_breaker(breaker.agent, phase=Breaker.Phase.RELEASING, trial_step_id=None)
    else:  # it says nothing of the service (its worker died, its job was stopped): another one is tried at once
        transitions.set_breaker(breaker.agent, phase=Breaker.Phase.OPEN, trial_step_id=None, trial_at=now())


def _is_under_way(trial: Step) -> bool:
    """Whether a trial may still tell something: it runs, or is about to, or its failure is not decided on yet."""
    its_job_moves = Step.objects.filter(pk=trial.pk).of_moving_jobs()
    match trial.state:
        case StepState.RUNNING:
            return True
        case StepState.NOT_STARTED:
            return its_job_moves.admitted(trial.agent).due_to_start().exists()
        case StepState.FAILED:
            return trial.remedy == "" and trial.error_kind in OF_SERVICE and its_job_moves.exists()
    return False


def _release(breaker: Breaker) -> None:
    """So many a second, and no more than the workers take: who is let go and waits would all meet the next outage."""
    under_way = Step.objects.admitted(breaker.agent).due_to_start().count()
    let_go = transitions.admit(breaker.agent, conf.release_rate - under_way) if under_way < conf.release_rate else []
    waits = Step.objects.parked(breaker.agent).of_moving_jobs().due_to_start()
    if not let_go and not under_way and not waits.exists() and not Step.objects.to_park(breaker.agent).exists():
        _close(breaker)


def _close(breaker: Breaker) -> None:
    transitions.set_breaker(breaker.agent, phase=Breaker.Phase.CLOSED, parks=False, trial_step_id=None, trial_at=None)
    Incident.objects.filter(agent=breaker.agent, closed_at__isnull=True).update(closed_at=now())
    logger.warning("the breaker of agent %s closes", breaker.agent)


def _end_long_waits(agent: str) -> None:
    if conf.observe_only:
        return
    before = now() - timedelta(seconds=conf.park_timeout)
    waiting = Step.objects.parked(agent).of_moving_jobs().filter(parked_since__lt=before)
    for step_id in waiting.values_list("pk", flat=True)[:100]:
        try:
            findings.refuse_parked(step_id)
        except Exception as error:  # one poison row must not keep the breaker from being tended
            pass_over(f"step {step_id}", error)


# --- what an operator sees and asks for ------------------------------------------------------------------------------


def waiting(agent: str) -> dict[str, object]:
    """{"steps", "jobs", "oldest"}: what is parked because of this agent."""
    parked = Step.objects.parked(agent).order_by()
    found = parked.aggregate(oldest=Min("parked_since"))
    return {
        "steps": parked.count(),
        "jobs": parked.values("job_id").distinct().count(),
        "oldest": found["oldest"],
    }


@in_transaction
def try_now(agent: str) -> None:
    """A person wants to know: let one step through at once instead of after the cool-down."""
    breaker = _parking(agent)
    if breaker.phase == Breaker.Phase.OPEN:
        transitions.set_breaker(agent, trial_at=now())


@in_transaction
def resume(agent: str, *, actor: str, reason: str = "") -> None:
    """A person says that the service answers again: let the parked steps go, so many a second.

    Their name stays on the incident. Where it fails again as before, the breaker opens again.
    """
    breaker = _parking(agent)
    if breaker.phase != Breaker.Phase.RELEASING:
        transitions.set_breaker(agent, phase=Breaker.Phase.RELEASING, trial_step_id=None)
    open_incident = Incident.objects.filter(agent=agent, closed_at__isnull=True, acknowledged_at__isnull=True)
    open_incident.update(acknowledged_at=now(), acknowledged_by=actor)
    logger.warning("%s lets the parked steps of agent %s go: %s", actor, agent, reason or "no reason given")


def _parking(agent: str) -> Breaker:
    """The agent's breaker, locked. Raises WrongState when it keeps nothing back."""
    breaker = Breaker.objects.select_for_update(no_key=True).filter(agent=agent, parks=True).first()
    if breaker is None:
        raise WrongState(f"The breaker of {agent} is not open: nothing waits for it to close.")
    return breaker


__all__ = ["OK", "counts_of", "parks", "resume", "retry_within_budget", "tend", "try_now", "waiting"]
