"""Who is needed: the jobs with something that the machine may not decide alone, each with its reasons and since when."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from supervisor import needs
from supervisor.console.filters import NEEDS_PERSON, jobs_in
from workflows import explanations
from workflows.models import Job, Step


@dataclass(frozen=True, kw_only=True)
class InNeed:
    """One job in need."""

    job: Job
    reasons: Sequence[str]
    since: datetime


def newest(limit: int) -> list[InNeed]:
    """The newest jobs that need a person."""
    return told(list(jobs_in(NEEDS_PERSON).newest_first()[:limit]))


def told(jobs: Sequence[Job]) -> list[InNeed]:
    """These jobs with why and since when they need a person; without reasons where they do not any more."""
    steps: dict[uuid.UUID, list[Step]] = {job.pk: [] for job in jobs}
    for step in Step.objects.filter(job__in=jobs).for_documents():
        steps[step.job_id].append(step)
    known = explanations.around(jobs, [step for rows in steps.values() for step in rows])
    cases = needs.cases_of(steps)
    found = []
    for job in jobs:
        own = explanations.needs_person(job, steps[job.pk], known)
        own_since = explanations.needs_person_since(job, steps[job.pk], known)
        of_job = cases.get(job.pk, [])
        found.append(
            InNeed(job=job, reasons=needs.reasons(own, of_job), since=needs.since(own, own_since, of_job)),
        )
    return found
