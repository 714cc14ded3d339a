"""The place of an exception that nobody expected: the innermost one in a team's own code."""

import json
import sys
from collections.abc import Callable

import pytest

from agents.frames import LONGEST, top_frame


def raised_by(act: Callable[[], object]) -> Exception:
    with pytest.raises(Exception) as caught:  # noqa: PT011 (whatever it is)
        act()
    return caught.value


def parse() -> object:
    return json.loads("{")


def test_what_a_library_raises_is_laid_to_whoever_called_it() -> None:
    line = parse.__code__.co_firstlineno + 1
    assert top_frame(raised_by(parse)) == f"tests/unit/test_agent_frames.py:{line} parse"


def test_where_only_libraries_were_the_innermost_place_is_better_than_none() -> None:
    error = raised_by(parse)
    assert error.__traceback__
    inside = error.__traceback__.tb_next
    assert inside
    while inside.tb_frame.f_code.co_filename == __file__:
        assert inside.tb_next
        inside = inside.tb_next
    assert top_frame(error.with_traceback(inside)).partition(":")[0] == "json/decoder.py"


def test_it_names_no_folder_of_this_machine_and_stays_short() -> None:
    code = compile(f"def {'x' * 180}():\n    raise ValueError\n", f"{sys.path[0] or '.'}/shop/agents.py", "exec")
    space: dict[str, Callable[[], object]] = {}
    exec(code, space)
    said = top_frame(raised_by(space["x" * 180]))
    assert len(said) <= LONGEST
    assert said.endswith(f":2 {'x' * 180}")


def test_what_was_never_raised_has_no_place() -> None:
    assert top_frame(ValueError()) == ""
