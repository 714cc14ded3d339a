"""The ways to people: e-mail, signed webhooks, and whatever apprise can reach. Named in the operator's settings alone."""

from supervisor.channels.channel import Channel, Fault, Message, in_words
from supervisor.channels.configured import configured, faults

__all__ = ["Channel", "Fault", "Message", "configured", "faults", "in_words"]
