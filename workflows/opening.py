"""The row of a job that is about to be opened."""

import json
from datetime import timedelta
from typing import Any

from workflows.conf import conf
from workflows.models import Job
from workflows.models.job import new_job_id
from workflows.plans.plan import Plan
from workflows.states import JobState


def new_job(
    plan: Plan,
    input: Any,
    *,
    key: str | None = None,
    client_id: int | None = None,
    parent_step_id: int | None = None,
) -> Job:
    """Unsaved. A job with a hook, or with a parent, is closed by the scheduler, since something else begins with its end."""
    return Job(
        id=new_job_id(),
        client_id=client_id,
        key=key,
        workflow=plan.workflow,
        version=plan.version,
        plan=json.loads(plan.document),
        input=input,
        state=JobState.RUNNING,
        reason="",
        reason_detail="",
        seq=1,
        open_steps=len(plan.steps),
        time_limit=plan.deadline or timedelta(seconds=conf.job_timeout),
        hooked=bool(plan.after_success or plan.after_failure or parent_step_id),
        parent_step_id=parent_step_id,
        partial=False,
    )
