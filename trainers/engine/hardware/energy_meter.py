"""Read the energy meters of the machine: RAPL for processors and memory, NVML for NVIDIA GPUs.

RAPL counts the energy of all processes on the machine; Linux lets only root read it by default
(CVE-2020-8694). NVML counts the energy of this worker's GPU, from the Volta generation on; it is multiplied
by the number of workers.
"""

import ctypes
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

_ZONES = Path("/sys/class/powercap")


class EnergyMeter:
    """Measures the energy used since the last `read`. `sources` names the meters in use; it is empty if there
    are none.
    """

    def __init__(self, zones: Path = _ZONES, gpu: Callable[[], float] | None = None, workers: int = 1) -> None:
        """Start the meter. `zones` is the folder that contains RAPL's zones. `gpu` returns the joules that
        the GPU has used so far; by default, NVML is asked. The meter multiplies these joules by `workers`,
        assuming that all workers' GPUs use the same energy.
        """
        self._rapl, self._workers = _rapl_zones(zones), workers
        self._gpu = gpu or _gpu_counter()
        self.sources = tuple(name for name, there in (("RAPL", self._rapl), ("NVML", self._gpu)) if there)
        self._last = self._counts()

    def read(self) -> float | None:
        """Return the joules used since the previous call or, at the first call, since the meter was created.
        Return None if nothing is measured.
        """
        if not self.sources:
            return None
        before, self._last = self._last, self._counts()
        total = 0.0
        for name, (count, limit) in self._last.items():
            earlier = before.get(name, (count, limit))[0]
            total += count - earlier + (limit if count < earlier else 0.0)  # a RAPL counter wraps around at its limit
        return total

    def _counts(self) -> dict[str, tuple[float, float]]:
        counts = {}
        for zone, limit in self._rapl.items():
            with suppress(OSError, ValueError):
                counts[str(zone)] = (_microjoules(zone / "energy_uj"), limit)
        if self._gpu is not None:
            counts["gpu"] = (self._workers * self._gpu(), 0.0)
        return counts


def _microjoules(path: Path) -> float:
    return int(path.read_text()) / 1e6


def _rapl_zones(root: Path) -> dict[Path, float]:
    """Return the readable RAPL zones of CPU packages and memory, each with the joules at which its counter
    wraps around. Other zones are left out because they would count energy twice.
    """
    zones = {}
    for zone in sorted(root.glob("intel-rapl:*")):
        with suppress(OSError, ValueError):
            name = (zone / "name").read_text().strip()
            if name.startswith("package") or name == "dram":
                _microjoules(zone / "energy_uj")
                zones[zone] = _microjoules(zone / "max_energy_range_uj")
    return zones


def _gpu_counter() -> Callable[[], float] | None:
    import torch

    if not torch.cuda.is_available():
        return None
    try:
        library = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return None
    identifier = f"GPU-{torch.cuda.get_device_properties(torch.cuda.current_device()).uuid}".encode()
    device, energy = ctypes.c_void_p(), ctypes.c_ulonglong()
    found = library.nvmlInit_v2() == 0 and library.nvmlDeviceGetHandleByUUID(identifier, ctypes.byref(device)) == 0
    if not found or library.nvmlDeviceGetTotalEnergyConsumption(device, ctypes.byref(energy)) != 0:
        return None

    def read() -> float:
        library.nvmlDeviceGetTotalEnergyConsumption(device, ctypes.byref(energy))
        return energy.value / 1000  # millijoules

    return read
