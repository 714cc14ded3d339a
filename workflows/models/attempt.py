from django.db import models
from django.db.models import Q

from workflows.models.invariants import Sound
from workflows.models.step import Step
from workflows.states import ErrorKind, Outcome

OPEN_DOUBT = Q(in_doubt=True, resolved_by="")


class Attempt(models.Model):
    """One try at a step. Doubt lives here: an attempt whose outcome nobody knows stays in doubt until it is resolved.

    `late_*` is what a fenced-out worker tried to say: evidence, never an outcome.
    """

    class Resolution(models.TextChoices):
        PROBE = "probe"
        ANSWER = "answer"
        UNDO = "undo"
        PERSON = "person"
        CALLBACK = "callback"

    # Written only together with its step's lock, so the check of a foreign key would buy nothing on the hot path.
    step = models.ForeignKey(
        Step, on_delete=models.CASCADE, related_name="attempts", db_index=False, db_constraint=False
    )
    number = models.IntegerField()
    token = models.UUIDField()
    worker = models.CharField(max_length=150)
    started_at = models.DateTimeField()
    finished_at = models.DateTimeField(null=True)
    outcome = models.CharField(max_length=10, choices=Outcome.choices, blank=True, db_default="")
    input = models.JSONField(null=True)
    error_kind = models.CharField(max_length=16, choices=ErrorKind.choices, blank=True, db_default="")
    error_code = models.CharField(max_length=60, blank=True, db_default="")
    error_message = models.TextField(blank=True, db_default="")
    # Where an exception that nobody expected was raised: file:line function.
    error_frame = models.CharField(max_length=200, blank=True, db_default="")
    in_doubt = models.BooleanField(db_default=False)
    resolved_by = models.CharField(max_length=8, choices=Resolution.choices, blank=True, db_default="")
    late_at = models.DateTimeField(null=True)
    late_outcome = models.CharField(max_length=10, choices=Outcome.choices, blank=True, db_default="")
    late_result = models.JSONField(null=True)
    late_message = models.TextField(blank=True, db_default="")

    class Meta:
        ordering = ["step_id", "number"]
        constraints = [
            models.UniqueConstraint(fields=["step", "number"], name="attempt_number_once_per_step"),
            models.CheckConstraint(
                condition=Sound("outcome", "finished_at", function="sag_attempt_is_sound"), name="attempt_is_sound"
            ),
        ]
        indexes = [models.Index(fields=["step"], condition=OPEN_DOUBT, name="attempt_in_doubt")]

    def __str__(self) -> str:
        return f"attempt {self.number}"
