"""What a job's rows mean, in words that people and client programs read. Pure: rows in, sentences and small dicts out.

Every function takes the steps as `Step.objects.filter(job=job).for_timeline()` gives them, with `undoes` and attempts.
What they cannot say alone (the items of fan-outs, other jobs, limits) is in the `Circumstances` that `around` loads;
without them the sentences are only less exact.
"""

from workflows.explanations.circumstances import NOTHING_KNOWN, Circumstances, around
from workflows.explanations.facts import in_doubt, known_reference, progress, reference_of
from workflows.explanations.persons import needs_person, needs_person_since
from workflows.explanations.receipts import receipt
from workflows.explanations.waiting import step_waiting_because, waiting_because

__all__ = [
    "NOTHING_KNOWN",
    "Circumstances",
    "around",
    "in_doubt",
    "known_reference",
    "needs_person",
    "needs_person_since",
    "progress",
    "receipt",
    "reference_of",
    "step_waiting_because",
    "waiting_because",
]
