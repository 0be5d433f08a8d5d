"""The scenarios by name. Most names list the concurrent commands, separated by commas. A new scenario takes
one line.
"""

from collections.abc import Callable
from importlib import import_module

from tests.schedules.explore import Scenario

_SCENARIOS: dict[str, tuple[str, str]] = {
    "lease": ("exhaustive.lease_scenarios", "three_processes"),
    "build,build": ("agents.builds", "two_builds"),
    "builds without leases": ("agents.builds", "builds_without_leases"),
    "pretrain,pretrain": ("training.meetings_of_runs", "two_pretrains"),
    "submit,submit": ("submissions.meetings_of_submissions", "two_slots"),
    "submit,submit with other code": ("submissions.meetings_of_submissions", "two_versions"),
    "publish a removed step": ("exhaustive.publishing_scenarios", "publish_a_removed_step"),
    "write while forgetting": ("exhaustive.publishing_scenarios", "write_while_forgetting"),
    "write new,sweep": ("exhaustive.publishing_scenarios", "write_new"),
    "write,remove old files": ("exhaustive.publishing_scenarios", "write_while_old_files_are_removed"),
    "write,remove directory": ("exhaustive.publishing_scenarios", "write_while_removed"),
    "checkpoint,ledger": ("exhaustive.run_scenarios", "save_while_another_copies"),
    "store build,store build": ("stores.builds_on_a_store", "two_store_builds"),
    "store lease": ("stores.store_scenarios", "take_store_lease"),
    "store write": ("stores.store_scenarios", "write_new_object"),
}
"""name -> (module below tests.schedules, function that makes the scenario)."""
_COMMANDS = (
    "build", "late build", "overtaken build", "workers", "gc", "forget", "forget another", "finish forgetting", "export", "read",
    "variant", "index", "index earlier",
)  # fmt: skip
"""Commands that may meet in any combination, at a published corpus; `workers` is a build whose tasks are processes,
`late build` one that has lost its lease and goes on, `overtaken build` one that began before any step was published."""
_AT = {
    " at a new corpus": "new",
    " at another reading": "reread",
    " where forgetting was interrupted": "interrupted",
    " at a copy with receipts": "receipts",
    " at a copy with steps": "steps",
}
"""Ending of a name -> kind of `published_corpus` on which the commands meet; without an ending, `used`."""
_APART = " on machines of their own"
"""Ending of a name: the commands share a disk that loses no power, and none can see whether another is alive."""
_OF_RUNS = ("pretrain", "pretrain on workers", "model export", "generate", "evaluate", "report", "score checkpoints")
"""Commands that may meet in any combination, at a run that has been trained for some steps and exported."""


def names() -> list[str]:
    meetings = f"any of {','.join(_COMMANDS)}, or these{' or'.join((*_AT, _APART))}"
    return [*_SCENARIOS, meetings, f"any of {','.join(_OF_RUNS)}"]


def scenario(name: str) -> Scenario:
    """Return the scenario with the given name, whose commands may be in any order."""
    together = name.removesuffix(_APART)
    end = next((end for end in _AT if together.endswith(end)), "")
    together = together.removesuffix(end)
    wanted = sorted(together.split(","))
    for known, (module, function) in _SCENARIOS.items():
        if sorted(known.split(",")) == wanted:
            make: Callable[[], Scenario] = getattr(import_module(f"tests.schedules.{module}"), function)
            return make()
    if set(wanted) <= set(_COMMANDS):
        from tests.schedules.agents.erasures import meeting

        apart = {"faults": ("kills", "suspensions")} if name.endswith(_APART) else {}
        return meeting(*together.split(","), disk=_AT.get(end, "used"), **apart)
    if set(wanted) <= set(_OF_RUNS):
        from tests.schedules.training.meetings_of_runs import meeting_of_runs

        return meeting_of_runs(*name.split(","))
    raise SystemExit(f"--agents: got {name!r}, allowed {'  '.join(names())}")
