"""Files of SAG_HOME that agents leave behind: each is there as a whole, or as it was before."""

import os
import tempfile
from pathlib import Path

from django.conf import settings


def home() -> Path:
    """SAG_HOME."""
    path: Path = settings.HOME.path
    return path


def write_whole(file: Path, content: bytes) -> None:
    """Replace a file in one move, once its content is on the disk."""
    descriptor, draft = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}-")
    try:
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(draft, file)
    except BaseException:
        Path(draft).unlink(missing_ok=True)
        raise
