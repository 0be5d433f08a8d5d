"""A driver whose first task kills itself once, and waits for a file on its second attempt: `soak_map.py
DIRECTORY`.
"""

import os
import signal
import sys
import time
from pathlib import Path


def fragile(item: tuple[str, int]) -> int:
    place, number = Path(item[0]), item[1]
    if number == 0 and not (place / "died").exists():
        (place / "died").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    if number == 0:
        (place / "again").touch()
        while not (place / "go").exists():
            time.sleep(0.05)
    return number * number


def main() -> int:
    from pipelines.cluster.ray import RayCluster
    from tests.chaos.soak import soak_map

    cluster = RayCluster(2, os.environ["RAY_ADDRESS"])
    items = [(sys.argv[1], number) for number in range(4)]
    results = dict(cluster.map(soak_map.fragile, items, str))
    cluster.close()
    return 0 if results == {number: number * number for number in range(4)} else 1


if __name__ == "__main__":
    sys.exit(main())
