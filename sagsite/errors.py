"""Why the system would not start, in words for the person at the terminal.

StartRefused
├── PortTaken
├── BrokenData
├── WrongVersion
└── MissingServer
"""


class StartRefused(Exception):
    """The system cannot start. The message is one sentence: what is wrong, where, and what to do."""

    code = "start_refused"


class PortTaken(StartRefused):
    """Another program listens where ours should."""

    code = "port_taken"


class BrokenData(StartRefused):
    """A data folder is there, but a server cannot use it."""

    code = "broken_data"


class WrongVersion(StartRefused):
    """A server, or the data of one, has a version we cannot work with."""

    code = "wrong_version"


class MissingServer(StartRefused):
    """A server that is needed is neither installed, nor running, nor reachable."""

    code = "missing_server"
