"""How many schedules each mutant takes: `python -m tests.schedules.mutants --schedules 2000 [NAME ...]`.

Each is explored in a process of its own, with the same seeds.
"""

import argparse
import itertools
import subprocess
import sys
import time

from tests.schedules.mutants.imports import import_mutated
from tests.schedules.mutants.table import MUTANTS


def find(name: str, schedules: int, seconds: float) -> str:
    """`found N MESSAGE` or `survives N`."""
    mutant = next(each for each in MUTANTS if each.name == name)
    import_mutated(mutant)
    from tests.schedules import registry
    from tests.schedules.choices import Default
    from tests.schedules.explore import choose_strategy, rare_collection, run

    try:
        scenario = registry.scenario(mutant.agents)
        length = run(scenario, Default())[0].steps
    except AssertionError as error:
        return f"found {0:5}  {error}"
    until = time.process_time() + seconds
    with rare_collection() as collect:
        for seed in itertools.count():
            if seed == schedules or time.process_time() > until:
                return f"survives {seed}"
            what = run(scenario, choose_strategy(scenario, seed, length))[1]
            collect()
            if what is not None:
                return f"found {seed + 1:5}  {what}"
    raise AssertionError("unreachable")


def main() -> int:
    """0 if all are found."""
    parser = argparse.ArgumentParser(prog="python -m tests.schedules.mutants", description=__doc__)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--schedules", type=int, default=2000)
    parser.add_argument("--seconds", type=float, default=600, help="of processor time for each")
    parser.add_argument("--here", action="store_true", help="one mutant, in this process")
    options = parser.parse_args()
    if options.here:
        print(find(options.names[0], options.schedules, options.seconds))
        return 0
    left = 0
    for mutant in MUTANTS:
        if options.names and mutant.name not in options.names:
            continue
        command = [sys.executable, "-m", "tests.schedules.mutants", "--here", mutant.name]
        command += ["--schedules", str(options.schedules), "--seconds", str(options.seconds)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        said = (done.stdout.strip() or done.stderr.strip()[-300:]).replace("\n", " ")
        left += not said.startswith("found")
        print(f"{mutant.name:60} {said[:150]}", flush=True)
    print(f"{left} survive")
    return 1 if left else 0


if __name__ == "__main__":
    sys.exit(main())
