"""A person in front of the console of a running system, without a browser's scripts: pages are read, forms are sent."""

import re
from types import TracebackType
from typing import Self

import httpx2

from tests.acceptance.system import RunningSystem

SEEN = re.compile(r'name="seen" value="(\d+)"')


class Operator:
    """One session of the demo's operator."""

    def __init__(self, system: RunningSystem) -> None:
        self.login = system.demo
        self.http = httpx2.Client(base_url=system.base_url, follow_redirects=True, timeout=30)

    def __enter__(self) -> Self:
        self.http.get("/login/")
        page = self.send("/login/", username=self.login["username"], password=self.login["password"])
        assert 'name="password"' not in page, "the login was refused"
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.http.close()

    def read(self, path: str) -> str:
        return self.http.get(path).raise_for_status().text

    def send(self, path: str, **fields: str) -> str:
        """Send a form; the page that follows."""
        token = self.http.cookies["csrftoken"]
        answer = self.http.post(
            path, data={**fields, "csrfmiddlewaretoken": token}, headers={"Origin": str(self.http.base_url)}
        )
        return answer.raise_for_status().text

    def version_seen(self, trip: str) -> str:
        """The version of the job that its page shows, as its buttons send it."""
        found = SEEN.search(self.read(f"/jobs/{trip}"))
        assert found, "the page offers no button"
        return found[1]
