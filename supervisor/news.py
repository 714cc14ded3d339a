"""What people are told of an outage, or of a cause for which jobs need a person: in words, and as data for programs."""

from datetime import UTC, datetime
from typing import Any

from django.conf import settings
from django.urls import reverse

from supervisor import needs, storms
from supervisor.advice import recommended
from supervisor.channels import Message
from supervisor.models import Incident, Need, Telling
from supervisor.needs import Matter

_VENDOR_SAID_AT_MOST = 500


def of(matter: Matter, said: Telling.Said, *, id: str, present: datetime) -> Message:
    """The message. Only one that says "still" came to pass at present."""
    kind = Telling.Kind.INCIDENT if isinstance(matter, Incident) else Telling.Kind.NEED
    over = matter.closed_at if said == Telling.Said.MENDED else None
    subject, lines, data = _incident(matter, over) if isinstance(matter, Incident) else _need(matter, over)
    link = _link(matter)
    when = f"Since {_told(matter.opened_at)}." if over is None else f"From {_told(matter.opened_at)} to {_told(over)}."
    return Message(
        id=id,
        type=f"{kind}.{said}",
        timestamp=over or (matter.opened_at if said == Telling.Said.OPENED else present),
        subject=f"Still: {subject}" if said == Telling.Said.STILL else subject,
        text="\n".join([lines[0], when, *lines[1:], *([link] if link else [])]),
        data={
            "kind": kind,
            "id": str(matter.pk),
            "subject": subject,
            "cause": matter.cause,
            "since": _iso(matter.opened_at),
            "until": _iso(over) if over else None,
            **data,
            "link": link,
        },
    )


def trial(*, id: str, present: datetime) -> Message:
    """One that asks nothing of anybody: to see whether a channel works."""
    subject = "Sag can tell you"
    text = "Somebody tried the channels of this installation. Nothing is wrong, and nothing is to be done."
    return Message(id=id, type="trial", timestamp=present, subject=subject, text=text, data={"subject": subject})


def _incident(incident: Incident, over: datetime | None) -> tuple[str, list[str], dict[str, Any]]:
    agent, message = incident.agent, incident.message[:_VENDOR_SAID_AT_MOST]
    data = {"agent": agent, "message": message}
    if over:
        subject = f"Over: {agent} was away: {incident.cause}"
        lines = [f"The outage of agent {agent} is over.", "What was parked goes on by itself."]
        return subject, lines, data | {"counts": {"steps": 0, "jobs": 0}}
    waiting = storms.waiting(agent)
    steps, jobs = waiting["steps"], waiting["jobs"]
    lines = [
        f"The service of agent {agent} does not answer: {message}",
        f"{steps} steps of {jobs} jobs are parked. Nothing is charged, and they go on by themselves once it answers.",
    ]
    return f"{agent} is away: {incident.cause}", lines, data | {"counts": {"steps": steps, "jobs": jobs}}


def _need(need: Need, over: datetime | None) -> tuple[str, list[str], dict[str, Any]]:
    data: dict[str, Any] = {"need": need.kind, "workflow": need.workflow or None, "step": need.step or None}
    if over:
        subject = f"Over: jobs needed a person: {need.cause}"
        lines = [f"No job needs a person any more: {need.cause}"]
        return subject, lines, data | {"counts": {"jobs": 0}, "examples": []}
    subject = f"{need.jobs} job{' needs' if need.jobs == 1 else 's need'} a person: {need.cause}"
    advice = recommended(need.kind, code=need.code, error_kind=need.error_kind, frame=need.frame)
    runbook = needs.runbooks([need]).get(need.pk)
    lines = [subject, f"What to do: {advice}", *([f"Runbook: {runbook}"] if runbook else [])]
    lines += ["Among them:", *(f"  {job}" for job in need.examples)]
    data |= {"counts": {"jobs": need.jobs}, "examples": need.examples, "recommended": advice, "runbook": runbook}
    return subject, lines, data


def _link(matter: Matter) -> str | None:
    if not settings.SAG_URL:
        return None
    if isinstance(matter, Incident):
        path = f"{reverse('agents')}#agent-{matter.agent}"
    else:
        path = f"{reverse('attention')}#need-{matter.pk}"
    return f"{settings.SAG_URL.rstrip('/')}{path}"


def _told(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M:%S} UTC"


def _iso(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat()
