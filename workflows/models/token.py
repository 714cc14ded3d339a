from django.contrib.postgres.fields import ArrayField
from django.db import models
from knox.models import AbstractAuthToken


class ApiToken(AbstractAuthToken):
    """A client program's token. Its user is the client; `scopes` says what it may do."""

    class Scope(models.TextChoices):
        READ = "jobs:read"
        WRITE = "jobs:write"
        OPERATE = "jobs:operate"
        ADMIN = "admin"

    name = models.CharField(max_length=150)
    scopes = ArrayField(models.CharField(max_length=20, choices=Scope.choices))
    last_used_at = models.DateTimeField(null=True)

    class Meta:
        verbose_name = "API token"

    def __str__(self) -> str:
        return self.name
