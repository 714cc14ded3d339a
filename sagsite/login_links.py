"""One-time login links: whoever started the system on this machine signs in with a click."""

from datetime import timedelta
from urllib.parse import urlencode

from django.contrib.auth import get_user_model
from django.contrib.auth.models import User
from django.core import signing
from django.utils import timezone

LIFETIME = timedelta(hours=12)
signer = signing.TimestampSigner(salt="sagsite.login_links")


def make(user: User) -> str:
    """The path of a page that signs this user in, once; any later login of theirs makes it void."""
    token = signer.sign_object({"user": user.pk, "last_login": last_login(user)})
    return "/login/?" + urlencode({"token": token})


def redeem(token: str) -> User | None:
    """The user the token stands for, used up by this call; None if it is forged, too old, used or void."""
    try:
        content = signer.unsign_object(token, max_age=LIFETIME)
    except signing.BadSignature:
        return None
    users = get_user_model()._default_manager
    user = users.filter(pk=content["user"], is_active=True).first()
    if user is None or last_login(user) != content["last_login"]:
        return None
    # The guard decides between two who click at the same moment.
    won = users.filter(pk=user.pk, last_login=user.last_login).update(last_login=timezone.now())
    return users.get(pk=user.pk) if won else None


def last_login(user: User) -> str | None:
    return user.last_login.isoformat() if user.last_login else None
