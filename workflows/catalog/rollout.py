"""A release rolled out over a fleet: one host, a look, a person's word, a few, then all others."""

from datetime import timedelta
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from workflows import Workflow, given, item, signal, step, timer


def _once_each(hosts: list[str]) -> list[str]:
    seen: set[str] = set()
    for host in hosts:
        if host.casefold() in seen:
            raise ValueError(f"names {host} twice")
        seen.add(host.casefold())
    return hosts


# Both become parts of paths and texts of files: they begin with a letter or digit, and hold no slash.
Host = Annotated[str, Field(max_length=100, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
Release = Annotated[str, Field(max_length=100, pattern=r"^[A-Za-z0-9][A-Za-z0-9._+-]*$")]


class RolloutRequest(BaseModel):
    """A release and the hosts that are to run it, the canary first."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    release: Release
    hosts: Annotated[list[Host], Field(min_length=1, max_length=10_000), AfterValidator(_once_each)]
    soak_seconds: Annotated[float, Field(ge=0, le=604_800, allow_inf_nan=False)] = 60
    """How long the canary runs before a person is asked."""

    refuse: Annotated[list[Host], Field(max_length=10_000)] = []
    """Hosts that refuse every release, to see what becomes of the others."""


class FleetRollout(Workflow):
    """Deploy to a canary, wait, ask a person, deploy to a tenth, then to the rest; put back what was there if it fails."""

    version = 1
    input = RolloutRequest

    waves = step("fleet.waves", compensation=False, input={"hosts": given["hosts"]})
    canary = step(
        "host.deploy",
        compensation="host.rollback",
        each=waves["canary"],
        input={"host": item, "release": given["release"], "refuse": given["refuse"]},
    )
    soak = timer(given["soak_seconds"], after=[canary])
    approval = signal(approval=True, timeout=timedelta(hours=24), after=[soak])
    early = step(
        "host.deploy",
        compensation="host.rollback",
        each=waves["early"],
        at_once=20,
        input={"host": item, "release": given["release"], "refuse": given["refuse"]},
        after=[approval],
    )
    rest = step(
        "host.deploy",
        compensation="host.rollback",
        each=waves["rest"],
        at_once=100,
        tolerate=0.02,
        input={"host": item, "release": given["release"], "refuse": given["refuse"]},
        after=[early],
    )
