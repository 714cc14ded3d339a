"""Where in a team's own code an exception was raised that nobody expected."""

import sys
import sysconfig
from functools import cache
from pathlib import Path
from traceback import walk_tb

LONGEST = 200

_ENGINE = Path(__file__).resolve().parent


def top_frame(error: BaseException) -> str:
    """The innermost frame outside of libraries, as "file:line function"; without any such the innermost of all."""
    frames = [(frame.f_code, line) for frame, line in walk_tb(error.__traceback__)]
    if not frames:
        return ""
    own = [place for place in frames if not _is_library(place[0].co_filename)]
    code, line = (own or frames)[-1]
    where = f":{line} {code.co_name}"
    return (_shown(code.co_filename)[-(LONGEST - len(where)) :] + where)[-LONGEST:]


@cache
def _is_library(file: str) -> bool:
    """What is installed, Python's own, and what calls operations here: none of it is where a team would look."""
    if file.startswith("<"):
        return True
    path = Path(file).resolve()
    if path.parent == _ENGINE or _ENGINE.parent / "workflows" in path.parents:
        return True
    return any(folder in path.parents for folder in _installed())


@cache
def _installed() -> frozenset[Path]:
    return frozenset(
        Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib", "purelib", "platlib")
    )


@cache
def _shown(file: str) -> str:
    """As short as an import would find it, and the same on every machine."""
    path = Path(file).resolve()
    roots = sorted(map(Path, filter(None, sys.path)), key=lambda root: len(root.parts), reverse=True)
    root = next((root for root in roots if root.resolve() in path.parents), None)
    return path.relative_to(root.resolve()).as_posix() if root else path.name
