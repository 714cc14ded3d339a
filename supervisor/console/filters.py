"""The job list's filters. They live in the URL, so that every link, action and step back keeps them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from urllib.parse import urlencode

from django.http import QueryDict

from supervisor import needs
from supervisor.models import Case
from workflows.models import Job
from workflows.querysets import JobQuerySet
from workflows.states import JobState

NEEDS_PERSON = "needs_person"
FAILING = "failing"
WORDS = {**{state.value: state.value for state in JobState}, FAILING: "Failing", NEEDS_PERSON: "Needs a person"}


@dataclass(frozen=True, kw_only=True)
class Filters:
    """Jobs in any of `states` (stored states and the words above), of one workflow, with this exact id or key, that stand in
    front of a person for one `cause`.

    `unknown` holds what the URL asked for and nobody understands.
    """

    states: tuple[str, ...] = ()
    workflow: str = ""
    q: str = ""
    cause: str = ""
    unknown: tuple[str, ...] = ()

    @classmethod
    def read(cls, query: QueryDict) -> Filters:
        asked = list(dict.fromkeys(word for word in query.getlist("state") if word))
        return cls(
            states=tuple(word for word in WORDS if word in asked),
            workflow=query.get("workflow", "").strip(),
            q=query.get("q", "").strip(),
            cause=_row_id(query.get("cause", "")),
            unknown=tuple(word for word in asked if word not in WORDS),
        )

    @classmethod
    def parse(cls, text: str) -> Filters:
        """The filters of a URL's query, as `query` writes it."""
        try:
            return cls.read(QueryDict(text))
        except ValueError:  # more fields than Django reads
            return cls()

    @property
    def query(self) -> str:
        """As a URL's query, without the question mark; empty when nothing is filtered."""
        pairs = [("state", word) for word in self.states]
        pairs += [
            (name, value)
            for name, value in (("workflow", self.workflow), ("q", self.q), ("cause", self.cause))
            if value
        ]
        return urlencode(pairs)

    @property
    def active(self) -> bool:
        return bool(self.states or self.workflow or self.q or self.cause)

    def toggled(self, word: str) -> Filters:
        """With this state added, or taken away."""
        chosen = {*self.states} ^ {word}
        return replace(self, states=tuple(known for known in WORDS if known in chosen))

    def without_states(self) -> Filters:
        return replace(self, states=())

    def apply(self, jobs: JobQuerySet) -> JobQuerySet:
        if "\0" in self.q + self.workflow:  # no stored text holds it, and PostgreSQL refuses to be asked
            return jobs.none()
        if self.states:
            jobs = self._in_states(jobs)
        if self.workflow:
            jobs = jobs.filter(workflow=self.workflow)
        if self.q:
            jobs = jobs.called(self.q)
        if self.cause:
            jobs = jobs.filter(pk__in=Case.objects.filter(need_id=int(self.cause)).values("job_id"))
        return jobs

    def _in_states(self, jobs: JobQuerySet) -> JobQuerySet:
        stored = [word for word in self.states if word in JobState.values]
        parts: list[JobQuerySet] = [jobs.filter(state__in=stored)] if stored else []
        if NEEDS_PERSON in self.states:
            parts.append(needs.jobs(jobs))
        if FAILING in self.states:
            parts.append(jobs.failing())
        return _any_of(parts)


def _any_of(parts: Iterable[JobQuerySet]) -> JobQuerySet:
    first, *others = parts
    for other in others:
        first = first | other
    return first


def _row_id(text: str) -> str:
    return text if text.isascii() and text.isdigit() and len(text) < 19 else ""


def jobs_in(word: str) -> JobQuerySet:
    """The jobs that this state's link shows."""
    return Filters(states=(word,)).apply(Job.objects.all())
