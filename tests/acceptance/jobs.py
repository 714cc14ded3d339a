"""Jobs of any workflow on a running system, judged by what is true of every job."""

from types import TracebackType
from typing import Any

import httpx2

from tests.acceptance import ledger_rules
from tests.acceptance.trips import Trips
from tests.waiting import wait_until


class Jobs(Trips):
    """The jobs of one test. Leaving the block checks their history and their counters."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is None:
                ledger_rules.every_job_ended_once(self.system, self.ids)
                ledger_rules.attempts_are_in_order(self.system, self.ids)
                ledger_rules.counters_agree_with_rows(self.system, self.ids)
        finally:
            self.api.close()

    def start(self, workflow: str, input: dict[str, Any] | None = None) -> str:
        answer = self.post("/jobs", {"workflow": workflow, "input": input or {}})
        assert answer.status_code == 202, answer.text
        return self._took(answer)

    def finish(self, job: str, timeout: float = 60) -> dict[str, Any]:
        """Wait until this job has ended; what the API shows of it."""
        self.wait_for_end([job], timeout)
        return self.job(job)

    def signal(self, job: str, name: str, body: dict[str, Any]) -> httpx2.Response:
        answer = self.api.post(f"/jobs/{job}/signals/{name}", json=body)
        assert answer.status_code == 202, answer.text
        return answer

    def wait_for_step(self, job: str, name: str, state: str, timeout: float = 60) -> dict[str, Any]:
        """Wait until this step is in this state; the step."""
        return wait_until(
            lambda: [step for step in [self.step(job, name)] if step["state"] == state],
            timeout,
            what=f"{name} is {state}",
        )[0]

    def items(self, job: str, name: str) -> dict[str, int]:
        """How many items of a fan-out are in which state."""
        query = """SELECT state, count(*) FROM sag_workflows_step
                   WHERE job_id = %s AND name = %s AND parent_id IS NOT NULL GROUP BY state"""
        return {row["state"]: row["count"] for row in self.system.sql(query, job, name)}
