from django.conf import settings
from django.db import models


class IdempotencyRecord(models.Model):
    """The answer that was given to the first request under an Idempotency-Key, committed with what it did."""

    client = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.DO_NOTHING, db_constraint=False, db_index=False, related_name="+"
    )
    method = models.CharField(max_length=8)
    path = models.CharField(max_length=300)
    key = models.CharField(max_length=255)
    fingerprint = models.CharField(max_length=64)
    status = models.SmallIntegerField()
    headers = models.JSONField()
    body = models.JSONField(null=True)
    created_at = models.DateTimeField()

    class Meta:
        constraints = [models.UniqueConstraint(fields=["client", "method", "path", "key"], name="one_answer_per_key")]

    def __str__(self) -> str:
        return f"{self.method} {self.path} {self.key}"
