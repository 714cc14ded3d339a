"""The agents: what each offers, whether its service answers, what waits for it; and the buttons that end an outage."""

from collections.abc import Callable
from dataclasses import dataclass

from django.contrib import messages
from django.db.models import QuerySet
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render

from supervisor import storms
from supervisor.console import incidents, workers
from supervisor.console.access import actor, is_operator, operator, reader
from supervisor.console.actions import NOT_DONE
from workflows import standing, transitions
from workflows.clock import now
from workflows.conf import conf
from workflows.exceptions import WrongState
from workflows.models import Breaker, Worker
from workflows.standing import Standing

PAST_OUTAGES = 10
Phase = Breaker.Phase

# Of each phase: the shape that stands for it, and its word.
PHASES: dict[str, tuple[str, str]] = {
    Phase.CLOSED: ("completed", "Answers"),
    Phase.OPEN: ("failed", "Away"),
    Phase.TRIAL: ("retrying", "Being tried"),
    Phase.RELEASING: ("running", "Coming back"),
}


@dataclass(frozen=True, kw_only=True)
class Card:
    """One agent as its card shows it."""

    standing: Standing
    shape: str
    word: str

    @classmethod
    def of(cls, standing: Standing) -> "Card":
        shape, word = PHASES[standing.breaker.phase if standing.breaker else Phase.CLOSED]
        return cls(standing=standing, shape=shape, word=word)


@reader
def agents(request: HttpRequest) -> HttpResponse:
    """All agents; those whose service is away first."""
    present = now()
    cards = [Card.of(found) for found in standing.of_agents()]
    cards.sort(key=lambda card: card.standing.breaker is None or not card.standing.breaker.parks)
    context = {
        "now": present,
        "cards": cards,
        "workers": workers.known(present),
        "queues": sorted(standing.served_queues()),
        "outages": incidents.lately(present, PAST_OUTAGES),
        "without_worker": standing.operations_without_worker(),
        "window": conf.breaker_window,
        "release_rate": conf.release_rate,
        "may_act": is_operator(request.user),
    }
    return render(request, "console/agents.html", context)


@operator
def agent_trial(request: HttpRequest, name: str) -> HttpResponse:
    """One step is let through now instead of after the cool-down."""
    return _act(request, name, lambda: storms.try_now(name), f"One step for {name} is let through now.")


@operator
def agent_resumption(request: HttpRequest, name: str) -> HttpResponse:
    """The person says that the service answers again."""
    said = f"What waited for {name} is released, {conf.release_rate} steps a second. If it is still away, it is parked again."
    return _act(request, name, lambda: storms.resume(name, actor=actor(request)), said)


@operator
def worker_draining(request: HttpRequest, name: str) -> HttpResponse:
    """One worker ends what it does, and ends; its keeper starts another."""
    return _drain(request, Worker.objects.filter(pk=name))


@operator
def queue_draining(request: HttpRequest, queue: str) -> HttpResponse:
    """The same for all workers of a queue."""
    return _drain(request, Worker.objects.filter(queues__contains=[queue]))


def _drain(request: HttpRequest, found: QuerySet[Worker]) -> HttpResponse:
    if not found.exists():
        raise Http404("There is no such worker.")
    names = transitions.ask_to_drain(found, actor=actor(request), reason="")
    if names:
        number = f"{len(names)} worker{'' if len(names) == 1 else 's'}"
        messages.success(request, f"{number} will end within seconds. Whoever keeps them starts others.")
    else:
        messages.warning(request, f"{NOT_DONE} No worker is there that was not about to end anyway.")
    return redirect("agents")


def _act(request: HttpRequest, name: str, verb: Callable[[], None], said: str) -> HttpResponse:
    if standing.of_agent(name) is None:
        raise Http404(f"No worker has announced an agent {name!r}.")
    try:
        verb()
    except WrongState as refusal:
        messages.warning(request, f"{NOT_DONE} {refusal.message}")
    else:
        messages.success(request, said)
    return redirect("agents")
