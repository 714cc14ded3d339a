"""The last sentence of an error: the right name that is nearest to a wrong one."""

from collections.abc import Iterable
from difflib import get_close_matches

_MOST_NAMES = 12


def did_you_mean(wrong: object, right: Iterable[object]) -> str:
    """' Did you mean X?', or ' There is: A, B.' when nothing is near, or '' when there is nothing at all."""
    names = [str(name) for name in right]
    if near := get_close_matches(str(wrong), names, n=1, cutoff=0.6):
        return f" Did you mean {near[0]!r}?"
    listed = ", ".join(names[:_MOST_NAMES]) + (", …" if len(names) > _MOST_NAMES else "")
    return f" There is: {listed}." if names else ""
