"""Explore schedules: `python -m tests.schedules --minutes 10 --agents build,gc --seed 0`.

Each seed determines one schedule. The search ends at the first failure and prints its seed and, after
shrinking, its story. To repeat the failure, pass that seed with `--schedules 1`.
"""

import argparse
import sys

from tests.schedules import registry
from tests.schedules.agents.small_corpora import SHAPES
from tests.schedules.search import search


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.schedules", description=__doc__)
    parser.add_argument("--agents", default=registry.names()[0], help=f"one of: {'  '.join(registry.names())}")
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--schedules", type=int, help="how many at most")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--corpus", choices=tuple(SHAPES), default="whole", help="of builds: its steps and parts")
    options = parser.parse_args()
    total, story = search(
        options.agents, options.seed, options.schedules, options.minutes * 60, options.processes, options.corpus
    )
    print(f"{options.agents}: {total}")
    print(story, end="\n" if story else "")
    return 1 if story else 0


if __name__ == "__main__":
    sys.exit(main())
