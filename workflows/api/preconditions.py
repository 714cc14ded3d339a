"""ETag, If-None-Match and If-Match (RFC 9110): the version of a job or step is the number of its last event."""

import re

from rest_framework.request import Request
from rest_framework.response import Response

from workflows.api.problems import PreconditionRequired
from workflows.exceptions import StaleVersion

_TAG = re.compile(r'(W/)?"([^"]*)"')


def etag(version: int) -> str:
    """The strong tag of a version."""
    return f'"{version}"'


def not_modified(request: Request, version: int) -> Response | None:
    """304 when the client has this version already (compared weakly, as reading may be), else None."""
    header = request.headers.get("If-None-Match", "").strip()
    known = {tag for _, tag in _TAG.findall(header)}
    if header == "*" or str(version) in known:
        return Response(status=304, headers={"ETag": etag(version)})
    return None


def version_seen(request: Request, version: int, *, required: bool = False) -> int | None:
    """The version that the client acts on; None for any, by `*` or where If-Match is not `required` and not sent.

    Raises PreconditionRequired, or StaleVersion when none of its tags is that of `version`; weak tags never are.
    The verb compares again under the lock.
    """
    header = request.headers.get("If-Match")
    if header is None:
        if required:
            raise PreconditionRequired(
                f"Send If-Match with the ETag that you saw; it is {etag(version)} now. Nothing was done."
            )
        return None
    if header.strip() == "*":
        return None
    if str(version) in {tag for weak, tag in _TAG.findall(header) if not weak}:
        return version
    raise StaleVersion(f"If-Match names {header}, and the ETag is {etag(version)} now: look again. Nothing was done.")
