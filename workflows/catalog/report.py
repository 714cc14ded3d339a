"""A report on all reservations, made at night: what is read once is looked at twice, side by side."""

from pydantic import BaseModel, ConfigDict

from workflows import Cron, Workflow, given, step
from workflows.catalog.trip import Day


class ReportRequest(BaseModel):
    """The day whose end the report describes. Left out, it is the day before the one on which the report is made."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    day: Day | None = None


class NightlyReport(Workflow):
    """Read the ledger, add it up and audit it side by side, and publish both as a page and a table."""

    version = 1
    input = ReportRequest
    schedule = Cron("0 2 * * *", timezone="Europe/Berlin", catch_up="latest", overlap="skip")

    extract = step("warehouse.extract", compensation=False, input={"day": given["day"]})
    totals = step("warehouse.totals", compensation=False, input={"rows": extract["rows"]})
    audit = step("warehouse.audit", compensation=False, input={"rows": extract["rows"]})
    publish = step("report.publish", input={"day": extract["day"], "totals": totals, "audit": audit})
