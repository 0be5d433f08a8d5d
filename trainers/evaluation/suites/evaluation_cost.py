"""Measure the cost of evaluating a model: time, energy and floating-point operations."""

import time

from trainers.engine.hardware.energy_meter import EnergyMeter
from trainers.engine.hardware.footprint import Footprint, footprint
from trainers.engine.hardware.mfu import device_name
from trainers.evaluation.scoring.scorer import Scorer
from trainers.report.run_cost import TERMS


class EvaluationMeter:
    """Measures time and energy from its creation on. The energy may include other work on the same hardware."""

    def __init__(self) -> None:
        self._meter, self._began = EnergyMeter(), time.perf_counter()

    def cost(self, scorer: Scorer) -> Footprint:
        """Return the time and energy used so far, with the floating-point operations of `scorer`."""
        import torch

        flops = dict(zip(TERMS, scorer.flops.tolist(), strict=True))
        seconds, joules = time.perf_counter() - self._began, self._meter.read()
        return footprint(
            flops, seconds, device_name(), torch.get_num_threads(), joules, " and ".join(self._meter.sources)
        )
