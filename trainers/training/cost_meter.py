"""Measure the cost of a run: operations and energy of each interval for the log, and their totals when the
run ends.
"""

from typing import Any

import numpy as np

from gristmill.events import read_events
from gristmill.storage.disk import LocalPath
from trainers.engine.hardware.energy_meter import EnergyMeter
from trainers.report.run_cost import TERMS, run_cost
from trainers.runs.progress import Progress


class CostMeter:
    """Reports the operations and energy of a run. Only the first worker measures energy. It reads the meters
    of its machine's processors and memory (RAPL) and of its own GPU (NVML), and multiplies the GPU's energy
    by the number of workers.
    """

    def __init__(self, run: LocalPath, progress: Progress, rank: int, world: int) -> None:
        self._run, self._progress, self._rank = run, progress, rank
        self._meter = EnergyMeter(workers=world) if rank == 0 else None

    @property
    def sources(self) -> str:
        """The names of the energy meters in use, joined by `and`, or an empty string if there are none."""
        return " and ".join(self._meter.sources) if self._meter is not None else ""

    def fields(self, flops: np.ndarray) -> dict[str, Any]:
        """Return fields of a step event: the operations by term (`flops`, [terms]) and the joules since
        energy was last read, or None if it is not measured.
        """
        return {"flops": dict(zip(TERMS, flops.tolist(), strict=True)), "joules": self._joules()}

    def finish(self, step: int) -> None:
        """Log the cost of the whole run so far, including the time before it was resumed. Only the first
        worker does this.
        """
        if self._rank:
            return
        last = self._joules()
        events = read_events(self._run / "log.jsonl")
        events.append({"event": "cost", "time": events[-1]["time"], "joules": last})
        cost = run_cost(events)
        if cost is not None:
            self._progress.write("cost", step=step, joules=last, total=cost.plain(), message=str(cost))

    def _joules(self) -> float | None:
        return self._meter.read() if self._meter is not None else None
