"""The agents of a roll-out: one plans its waves, one deploys to hosts."""

from agents.fleet import host, waves

__all__ = ["host", "waves"]
