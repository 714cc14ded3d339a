"""How the console writes states, times and payloads. Whatever comes from outside is escaped here or by the template."""

import json
import re
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import urlencode

from django import template
from django.urls import reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString, mark_safe

from supervisor import health
from supervisor.console import pulse, words
from supervisor.console.cards import StepView
from workflows.models import Event, Job, Step
from workflows.states import JobState, Remedy, StepState

register = template.Library()

BRIEF = 60
LONGEST_TEXT = 10_000  # characters: a page that is sent every second must stay small

# A shape for each word, so that no state is told by its colour alone. Drawn in a box of 16 by 16.
_CHECK = '<path d="M4.7 8.3l2.2 2.2 4.4-4.9" class="line"/>'
_CROSS = '<path d="M5.6 5.6l4.8 4.8m0-4.8l-4.8 4.8" class="line"/>'
_BACK = '<path d="M10.6 9.9a3.2 3.2 0 1 0-5-3.6M5.2 3.6v2.9h2.9" class="line"/>'
_DISC = '<circle cx="8" cy="8" r="7"/>'
_RING = '<circle cx="8" cy="8" r="6" class="ring"/>'
_SHAPES = {
    "waiting": '<circle cx="8" cy="8" r="6" class="ring dashed"/>',
    "running": f'{_RING}<path d="M8 3.6a4.4 4.4 0 0 1 0 8.8z"/>',
    "retrying": f'{_RING}<path d="M8 4.8V8l2.2 1.6" class="line"/>',
    "completed": f"{_DISC}{_CHECK}",
    "failed": f'<path d="M5.1 1h5.8L15 5.1v5.8L10.9 15H5.1L1 10.9V5.1z"/>{_CROSS}',
    "skipped": f'{_RING}<path d="M5 8h6" class="line"/>',
    "compensating": f"{_RING}{_BACK}",
    "undone": f"{_DISC}{_BACK}",
    "compensated": f"{_DISC}{_BACK}",
    "doubt": '<path d="M8 1l7 7-7 7-7-7z"/>'
    '<path d="M6.4 6.5a1.6 1.6 0 1 1 2.2 1.5c-.4.2-.6.4-.6.9M8 11v.1" class="line"/>',
    "person": '<path d="M8 1.4L15.4 14.6H.6z"/><path d="M8 6v4.2M8 12.4v.1" class="line"/>',
    "paused": f'{_DISC}<path d="M6.3 5.4v5.2M9.7 5.4v5.2" class="line"/>',
    "failing": f'{_RING}<path d="M8 4.6v4M8 11v.1" class="line"/>',
}
_ALIASES = {"needs_person": "person", "notstarted": "waiting"}


@register.simple_tag
def shape(word: str) -> SafeString:
    """The shape of a state, for eyes only: the word stands beside it."""
    name = word.lower()
    name = _ALIASES.get(name, name)
    name = name if name in _SHAPES else "waiting"
    return format_html(
        '<svg class="shape is-{}" viewBox="0 0 16 16" aria-hidden="true" focusable="false">{}</svg>',
        name,
        mark_safe(_SHAPES[name]),  # noqa: S308 (a constant of this file)
    )


@register.simple_tag
def badge(word: str, text: str = "") -> SafeString:
    """A state as shape and word."""
    return format_html('<span class="badge is-{}">{}<span>{}</span></span>', word.lower(), shape(word), text or word)


@register.filter
def as_json(value: Any) -> str:
    """A payload as people read it, cut where it gets long."""
    return cut(json.dumps(value, indent=2, ensure_ascii=False))


@register.filter
def brief(value: Any) -> str:
    """A payload on one line, or its beginning."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= BRIEF else f"{text[:BRIEF]}…"


@register.filter
def approvers(names: Iterable[str]) -> str:
    """Whose decision counts, as people say it."""
    return ", ".join(f"the group {name[6:]}" if name.startswith("group:") else name for name in names)


@register.filter
def cut(text: str) -> str:
    """A text from outside, cut where it gets long."""
    if len(text) <= LONGEST_TEXT:
        return text
    return f"{text[:LONGEST_TEXT]}\n… and {len(text) - LONGEST_TEXT:,} more characters; the API has all of it."


# Of an id that has something behind it, as in the keys of children and of schedules, all but the end.
_ID_WITHIN = re.compile(r"\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-(?=[0-9a-f]{12}:)")


@register.filter
def short(job: Job) -> str:
    """What people call a job: its key, or the end of its id. An id within the key is told by its end, too."""
    return _ID_WITHIN.sub("…", job.key) if job.key else f"…{str(job.pk)[-12:]}"


_BELONGS_TO = {"incidents": "agents"}


@register.simple_tag(takes_context=True)
def current(context: template.Context, page: str) -> SafeString | str:
    """Marks the link to this page when it is shown, or when what is shown lies below it."""
    shown = context["request"].resolver_match
    if shown is None:
        return ""
    if shown.url_name == page:
        return format_html(' aria-current="{}"', "page")
    folder = shown.route.partition("/")[0]
    return format_html(' aria-current="{}"', "true") if _BELONGS_TO.get(folder, folder) == page else ""


# --- times ---------------------------------------------------------------------------------------------------------


@register.filter
def duration(span: timedelta | None) -> str:
    """0.04 s · 3.5 s · 12 s · 3 min 20 s · 2 h 5 min · 3 d 4 h. The script writes the same, see console.js."""
    if span is None:
        return ""
    seconds = max(span.total_seconds(), 0)
    if seconds < 10:
        return f"{seconds:.{2 if seconds < 1 else 1}f} s"
    whole = int(seconds)
    for size, unit, smaller, name in ((86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if whole >= size:
            rest = whole % size // smaller
            return f"{whole // size} {unit} {rest} {name}" if rest else f"{whole // size} {unit}"
    return f"{whole} s"


@register.simple_tag(takes_context=True)
def ago(context: template.Context, moment: datetime | None) -> SafeString | str:
    """How long ago, or in how long; the exact time on hover. The script keeps it counting."""
    if moment is None:
        return ""
    away = context["now"] - moment
    text = f"in {duration(-away)}" if away < timedelta(0) else f"{duration(away)} ago"
    return format_html(
        '<time datetime="{}" title="{}" data-ago>{}</time>', moment.astimezone(UTC).isoformat(), exact(moment), text
    )


@register.simple_tag(takes_context=True)
def elapsed(context: template.Context, since: datetime | None, until: datetime | None = None) -> SafeString | str:
    """How long something took, or has been taking until now."""
    if since is None:
        return ""
    text = duration((until or context["now"]) - since)
    if until is not None:
        return format_html('<span title="{} to {}">{}</span>', exact(since), exact(until), text)
    return format_html(
        '<time datetime="{}" title="since {}" data-since>{}</time>',
        since.astimezone(UTC).isoformat(),
        exact(since),
        text,
    )


@register.filter
def exact(moment: datetime | None) -> str:
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M:%S.%f}"[:-3] + " UTC" if moment else ""


@register.filter
def in_zone(moment: datetime) -> str:
    """In the zone that the moment is in, with its weekday and its offset, which change where the summer begins or ends."""
    offset = f"{moment:%z}"
    return f"{moment:%a %Y-%m-%d %H:%M:%S} {offset[:3]}:{offset[3:5]}"


@register.filter
def spaced(rule: str) -> str:
    """ "buffer_one" as people read it."""
    return rule.replace("_", " ")


@register.filter
def clock(moment: datetime | None) -> str:
    """The time of day, to the millisecond: events follow one another fast."""
    return f"{moment.astimezone(UTC):%H:%M:%S.%f}"[:-3] if moment else ""


# --- rows of a list ------------------------------------------------------------------------------------------------


@register.filter
def current_step(job: Job) -> Step | None:
    """The step that a live job is at, or that an ended one failed in."""
    steps = list(job.steps.all())
    if job.state == JobState.COMPLETED:
        return None
    if job.is_terminal:
        return next((step for step in steps if step.remedy == Remedy.ESCALATE), _first_failed(steps))
    order = (StepState.RUNNING, StepState.FAILED, StepState.NOT_STARTED)
    open_steps = [step for step in steps if step.state in order and (job.state == JobState.RUNNING or step.undoes_id)]
    return min(
        open_steps, key=lambda step: (order.index(StepState(step.state)), step.waiting_for, step.seq), default=None
    )


def _first_failed(steps: list[Step]) -> Step | None:
    return next((step for step in steps if step.state == StepState.FAILED), None)


@register.filter
def reason_in_words(job: Job) -> str:
    return words.of_reason(job)


# --- forms ---------------------------------------------------------------------------------------------------------


@register.simple_tag(takes_context=True)
def posts_to(context: template.Context, noun: str, *of: str) -> SafeString:
    """The attributes of a form that asks for a verb of this job, or of a step of it, and shows the answer in place."""
    address = reverse(noun, args=[context["job"].pk, *of]) + context["back"]
    return format_html(
        'method="post" action="{}" hx-post="{}" hx-disabled-elt="find button" hx-sync="#live:replace"', address, address
    )


@register.filter
def items_query(card: StepView, list_query: str) -> str:
    """The query of the page with a fan-out's items."""
    generation = card.step.generation if card.step.superseded else None
    pairs = {"generation": generation, "list": list_query or None}
    query = urlencode({name: value for name, value in pairs.items() if value})
    return f"?{query}" if query else ""


@register.simple_tag
def needy() -> pulse.Count:
    """How many jobs need a person, for the way there."""
    return pulse.needy()


@register.simple_tag
def observes() -> str:
    """What to know while the supervisor changes nothing; else nothing."""
    return health.OBSERVES if health.observes() else ""


# --- history -------------------------------------------------------------------------------------------------------


@register.filter
def in_words(event: Event) -> str:
    return words.of_event(event)


@register.filter
def event_words(data: Any) -> str:
    """The details of an event on one line."""
    if not isinstance(data, dict):
        return ""
    return " · ".join(_said(name, value) for name, value in data.items() if value not in (None, "", False))


def _said(name: str, value: Any) -> str:
    words = name.replace("_", " ")
    if isinstance(value, list):
        value = ", ".join(map(str, value))
    if value is True:
        return words
    if name.endswith("_seconds"):
        return f"{words.removesuffix(' seconds')} {value} s"
    return f"{words} {value}"


@register.filter
def lookup(table: dict[Any, Any], name: Any) -> Any:
    return table.get(name)


@register.filter
def share(part: Any, whole: Any) -> str:
    """So many percent; none where these are no numbers, since calls may report what they like."""
    if not isinstance(part, int | float) or not isinstance(whole, int | float) or whole <= 0:
        return "0"
    return f"{max(0, min(100 * part / whole, 100)):.1f}"


@register.filter
def as_list_query(list_query: str) -> str:
    """What a link to a job carries so that the way back leads to the same filtered list."""
    return "?" + urlencode({"list": list_query}) if list_query else ""


@register.simple_tag
def step_shape(step: Step) -> SafeString:
    """The small mark of a step in a row of the job list; its word for those who do not see it."""
    word = "retrying" if step.state == StepState.NOT_STARTED and step.attempt else step.state
    return format_html('{}<span class="sr-only">{} {} </span>', shape(word), step.name, step.state)
