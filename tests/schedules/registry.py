"""The scenarios by name: the commands that meet, separated by commas. A new one is one line."""

from collections.abc import Callable
from importlib import import_module

from tests.schedules.explore import Scenario

_SCENARIOS: dict[str, tuple[str, str]] = {
    "lease": ("exhaustive.lease_scenarios", "three_processes"),
}
"""name -> (module below tests.schedules, function that makes the scenario)."""


def names() -> list[str]:
    """The names of all scenarios."""
    return list(_SCENARIOS)


def scenario(name: str) -> Scenario:
    """The scenario of a name, which may give its commands in any order."""
    wanted = sorted(name.split(","))
    for known, (module, function) in _SCENARIOS.items():
        if sorted(known.split(",")) == wanted:
            make: Callable[[], Scenario] = getattr(import_module(f"tests.schedules.{module}"), function)
            return make()
    raise SystemExit(f"--agents: got {name!r}, allowed {', '.join(_SCENARIOS)}")
