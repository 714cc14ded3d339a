"""Who gets a release when."""

from typing import Any

from agents import Agent, Call, Permanent

fleet = Agent("fleet", honours_keys=True, closes_keys=True)


@fleet.operation
def waves(call: Call) -> dict[str, Any]:
    """{"hosts"} → {"canary": the first, "early": the next tenth of all, at least one if there are more, "rest"}."""
    hosts = call.input["hosts"]
    if not hosts:
        raise Permanent("There are no hosts to roll out to.", code="no_hosts")
    early = 1 + max(1, len(hosts) // 10)
    return {"canary": hosts[:1], "early": hosts[1:early], "rest": hosts[early:]}
