"""Write docs/reliability.md from the record of `make chaos`, one JSON line per fault: `python docs/reliability.py FILE`."""

import json
import os
import platform
import statistics
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

HEAD = """\
# Injected faults and their outcomes

`make chaos` breaks builds and pretraining runs on purpose, lets the same command finish them, and compares the result with an
undisturbed one. It writes this page: {injections:,} faults, injected on {date} on {machine}.

Lost and doubled count documents of the corpus or, for a run, rows that are trained on. Identical means that every byte of the
result is the same; for a run, every row, and every loss to 5 decimals, since another number of workers adds in another order.
Seconds to recover, median and longest, are measured from the fault to the finished result, or from the next start of the same
command if that is what recovers. They are for small corpora and models on a machine of {cores} cores, and mostly the start of
processes. `tests/chaos` contains the faults; a sample of them runs with the ordinary tests. What happens when commands meet is
explored by a simulator, see [schedules.md](schedules.md).
"""
COLUMNS = "| fault | times | lost | doubled | identical | median s | longest s |\n|---|---:|---:|---:|---|---:|---:|"


def page(rows: list[dict[str, Any]], date: str, machine: str) -> str:
    """Return the page of the recorded faults."""
    groups: dict[str, dict[str, list[dict[str, Any]]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        groups[row["group"]][row["fault"]].append(row)
    text = HEAD.format(injections=len(rows), date=date, machine=machine, cores=os.cpu_count())
    for group, faults in sorted(groups.items()):
        text += f"\n## {group}\n\n{COLUMNS}\n" + "".join(
            _row(fault, injections) for fault, injections in sorted(faults.items())
        )
    return text


def _row(fault: str, injections: list[dict[str, Any]]) -> str:
    lost, doubled = (sum(row[name] for row in injections) for name in ("lost", "doubled"))
    same = sum(row["identical"] for row in injections)
    seconds = [row["seconds"] for row in injections]
    verdict = "all" if same == len(injections) else f"{same} of {len(injections)}"
    figures = f"{statistics.median(seconds):.1f} | {max(seconds):.1f}"
    return f"| {fault} | {len(injections)} | {lost} | {doubled} | {verdict} | {figures} |\n"


def main() -> None:
    """Write the page."""
    rows = [json.loads(line) for line in Path(sys.argv[1]).read_text().splitlines()]
    machine = f"{os.cpu_count()} cores, Linux {platform.release().partition('-')[0]}"
    target = Path(__file__).with_suffix(".md")
    target.write_text(page(rows, time.strftime("%Y-%m-%d"), machine))
    print(f"{target}: {len(rows)} injections")


if __name__ == "__main__":
    main()
