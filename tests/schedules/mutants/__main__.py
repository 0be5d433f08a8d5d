"""Count the schedules needed to find each mutant.

Usage: `python -m tests.schedules.mutants --schedules 2000 [NAME ...]`. Each mutant is explored in a separate
process, with the same seeds.
"""

import argparse
import itertools
import subprocess
import sys
import time

from tests.schedules.mutants.imports import import_mutated
from tests.schedules.mutants.table import MUTANTS


def find(
    name: str,
    schedules: int,
    seconds: float,
    first: int = 0,
    mutated: bool = True,
    shape: str = "whole",
    directed: bool = False,
) -> str:
    """Explore one mutant in this process; return `found N MESSAGE` or `survives N`."""
    mutant = next(each for each in MUTANTS if each.name == name)
    if mutated:
        import_mutated(mutant)
    from tests.schedules import registry
    from tests.schedules.agents.small_corpora import choose_shape
    from tests.schedules.choices import Default, Replay
    from tests.schedules.explore import choose_strategy, rare_collection, run
    from tests.schedules.mutants.directed import directed_schedules

    choose_shape(shape)
    try:
        scenario = registry.scenario(mutant.agents)
        length = run(scenario, Default())[0].steps
    except AssertionError as error:
        return f"found {0:5}  {error}"
    until = time.process_time() + seconds
    if directed:
        strategies = (Replay(decisions, 0) for decisions in directed_schedules(scenario))
    else:
        strategies = (choose_strategy(scenario, seed, length) for seed in itertools.count(first))
    tried = 0
    with rare_collection() as collect:
        for strategy in strategies:
            if tried == schedules or time.process_time() > until:
                break
            tried += 1
            what = run(scenario, strategy)[1]
            collect()
            if what is not None:
                return f"found {tried:5}  {what}"
    return f"survives {tried}"


def _explore(name: str, schedules: int, seconds: float, first: int, shape: str, *more: str) -> str:
    """Explore a mutant in a separate process; return the line that `find` prints there, or the end of the
    error output.
    """
    command = [sys.executable, "-m", "tests.schedules.mutants", "--here", name, "--schedules", str(schedules)]
    command += ["--seconds", str(seconds), "--first", str(first), "--corpus", shape, *more]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return (done.stdout.strip() or done.stderr.strip()[-300:]).replace("\n", " ")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.schedules.mutants", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="of a patch, without hyphens; all by default")
    parser.add_argument("--schedules", type=int, default=2000)
    parser.add_argument("--seconds", type=float, default=600, help="of processor time for each")
    parser.add_argument("--here", action="store_true", help="one mutant, in this process")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--corpus", default="whole", help="the shape of corpora: whole or small")
    parser.add_argument("--directed", action="store_true", help="schedules of few switches where agents meet, no seeds")
    parser.add_argument("--unchanged", action="store_true", help="with --here: the product itself")
    options = parser.parse_args()
    if unknown := set(options.names) - {mutant.name for mutant in MUTANTS}:
        parser.error(f"no mutant is named {', '.join(sorted(unknown))}")
    if options.here:
        print(
            find(
                options.names[0],
                options.schedules,
                options.seconds,
                options.first,
                not options.unchanged,
                options.corpus,
                options.directed,
            )
        )
        return 0
    left = 0
    for mutant in MUTANTS:
        if options.names and mutant.name not in options.names:
            continue
        more = ("--directed",) if options.directed else ()
        said = _explore(mutant.name, options.schedules, options.seconds, options.first, options.corpus, *more)
        if said.startswith("found") and not said.startswith("found     0"):
            # What is directed depends on what the code does: the product must pass as many of its own schedules.
            number = int(said.split()[1])
            first, count = (0, number) if options.directed else (options.first + number - 1, 1)
            same = _explore(mutant.name, count, options.seconds, first, options.corpus, *more, "--unchanged")
            if not same.startswith("survives"):
                said = f"invalid: the product fails too with seed {first}: {same}"
        left += not said.startswith("found")
        print(f"{mutant.name:60} {said[:150]}", flush=True)
    print(f"{left} survive")
    return 1 if left else 0


if __name__ == "__main__":
    sys.exit(main())
