"""Who is asking: a client program, known by its bearer token alone. Cookies and sessions count for nothing here."""

from datetime import timedelta

from django.contrib.auth.models import User
from django.db.models import Q
from django.db.models.functions import Now
from django.utils import timezone
from knox.crypto import hash_token
from rest_framework.authentication import BaseAuthentication, get_authorization_header
from rest_framework.exceptions import AuthenticationFailed
from rest_framework.request import Request

from workflows.models import ApiToken

_NOTE_USE_EVERY = timedelta(minutes=1)


class BearerTokenAuthentication(BaseAuthentication):
    """`Authorization: Bearer <token>`. The store knows digests only, so a token is found by its own."""

    def authenticate(self, request: Request) -> tuple[User, ApiToken] | None:
        """The client's user and its token; None without a bearer token. Raises AuthenticationFailed."""
        scheme, _, credentials = get_authorization_header(request).partition(b" ")
        if scheme.lower() != b"bearer":
            return None
        token = self._token_of(credentials.strip())
        if token is None or not token.user.is_active:
            raise AuthenticationFailed("The token is not known, has expired, or belongs to a client that was shut out.")
        self._note_use(token)
        return token.user, token

    def authenticate_header(self, request: Request) -> str:
        """What a 401 asks for."""
        return 'Bearer realm="api"'

    def _token_of(self, credentials: bytes) -> ApiToken | None:
        try:
            digest = hash_token(credentials.decode("ascii"))
        except UnicodeDecodeError:
            return None
        valid = ApiToken.objects.filter(Q(expiry__isnull=True) | Q(expiry__gt=Now()))
        token: ApiToken | None = valid.select_related("user").filter(digest=digest).first()
        return token

    def _note_use(self, token: ApiToken) -> None:
        """At most one write a minute: most requests read, and should write nothing."""
        if token.last_used_at and timezone.now() - token.last_used_at < _NOTE_USE_EVERY:
            return
        unnoted = Q(last_used_at__isnull=True) | Q(last_used_at__lt=Now() - _NOTE_USE_EVERY)
        ApiToken.objects.filter(unnoted, pk=token.pk).update(last_used_at=Now())
