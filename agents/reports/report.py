"""The place where reports are published: a folder for each day, with a page for people and a table for programs."""

import csv
from datetime import date
from io import StringIO
from typing import Any

from django.utils.html import format_html, format_html_join

from agents import Agent, Call, Permanent
from agents.files import home, write_whole

report = Agent("report", honours_keys=True)

COLUMNS = ("made", "cancelled", "live")


@report.operation
def publish(call: Call) -> dict[str, Any]:
    """{"day", "totals", "audit"} → {"day", "page", "table"}, which are paths below SAG_HOME.

    Publishing a day again replaces its report.
    """
    day = _day(call.input["day"])
    services, audit = dict(sorted(call.input["totals"]["services"].items())), call.input["audit"]
    folder = home() / "reports" / day
    call.check_may_send()
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / "report.csv", _table(day, services).encode())
    write_whole(folder / "report.html", _page(day, services, audit).encode())
    return {"day": day, "page": f"reports/{day}/report.html", "table": f"reports/{day}/report.csv"}


def _day(value: Any) -> str:
    try:
        return date.fromisoformat(value).isoformat()
    except (TypeError, ValueError):
        raise Permanent(f"{value!r} is no day.", code="no_day") from None


def _table(day: str, services: dict[str, dict[str, int]]) -> str:
    text = StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(["day", "service", *COLUMNS])
    table.writerows([day, name, *(counts[column] for column in COLUMNS)] for name, counts in services.items())
    return text.getvalue()


def _page(day: str, services: dict[str, dict[str, int]], audit: dict[str, Any]) -> str:
    rows = format_html_join(
        "\n",
        "<tr><th>{}</th><td>{}</td><td>{}</td><td>{}</td></tr>",
        ((name, *(counts[column] for column in COLUMNS)) for name, counts in services.items()),
    )
    findings = format_html_join("\n", "<li>{service}: {key} was {finding}.</li>", audit["findings"])
    return format_html(
        """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<title>Reservations at the end of {day}</title>
<h1>Reservations at the end of {day}</h1>
<table>
<tr><th>Service</th><th>Made</th><th>Cancelled</th><th>Live</th></tr>
{rows}
</table>
<h2>Audit</h2>
<p>{checked} reservations were checked; {found}.</p>
<ul>
{findings}
</ul>
</html>
""",
        day=day,
        rows=rows,
        checked=audit["checked"],
        found=f"{len(audit['findings'])} findings" if audit["findings"] else "nothing was found",
        findings=findings,
    )
