"""Who is needed: the jobs with something that the machine may not decide alone, each with its reasons and since when."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from supervisor.console.filters import NEEDS_PERSON, jobs_in
from supervisor.console.pages import Cursor
from workflows import explanations
from workflows.models import Job, Step


@dataclass(frozen=True, kw_only=True)
class Need:
    """One job in need."""

    job: Job
    reasons: Sequence[str]
    since: datetime


def newest(limit: int, older_than: Cursor | None = None) -> list[Need]:
    """The newest jobs that need a person."""
    jobs = jobs_in(NEEDS_PERSON).newest_first()
    needy = list((jobs.filter(older_than.older) if older_than else jobs)[:limit])
    steps: dict[uuid.UUID, list[Step]] = {job.pk: [] for job in needy}
    for step in Step.objects.filter(job__in=needy).for_documents():
        steps[step.job_id].append(step)
    known = explanations.around(needy, [step for rows in steps.values() for step in rows])
    return [
        Need(
            job=job,
            reasons=explanations.needs_person(job, steps[job.pk], known),
            since=explanations.needs_person_since(job, steps[job.pk], known),
        )
        for job in needy
    ]
