"""`manage.py create_token NAME --scope jobs:read …`: an API client and a token for it."""

from typing import Any

from django.contrib.auth import get_user_model
from django.core.exceptions import ValidationError
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import transaction

from workflows.models import ApiToken


class Command(BaseCommand):
    help = "Make a token for an API client, which is created if there is none of this name. Prints the token, once."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("name", help="the client's name; it stands in the history of what the client does")
        parser.add_argument(
            "--scope",
            dest="scopes",
            action="append",
            required=True,
            choices=ApiToken.Scope.values,
            help="what the token may do; may be given several times",
        )

    @transaction.atomic
    def handle(self, *args: Any, name: str, scopes: list[str], **options: Any) -> None:
        client = get_user_model().objects.filter(username=name).first() or self._new_client(name)
        _, token = ApiToken.objects.create(client, expiry=None, name=name, scopes=list(dict.fromkeys(scopes)))
        self.stdout.write(token)

    def _new_client(self, name: str) -> Any:
        client = get_user_model()(username=name)
        client.set_unusable_password()
        try:
            client.full_clean()
        except ValidationError as error:
            raise CommandError(f"{name!r} cannot be a client's name: {' '.join(error.messages)}") from error
        client.save()
        return client
