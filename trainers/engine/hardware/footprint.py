"""The cost of a computation: operations, device hours, energy and carbon dioxide.

    energy in kWh  =  PUE x (energy of processors, memory and GPUs)
    CO2e in kg     =  kWh x kg per kWh

The formulas and their constants are from Strubell et al., 2019 (Energy and Policy Considerations for Deep
Learning in NLP), section 2, equations (1) and (2): a power usage effectiveness of 1.58 (Ascierto, 2018), and
0.954 pounds of CO2e per kWh, the mean of the United States (EPA, 2018). Energy that is not measured is
estimated as nominal power times time. The nominal power is taken from the data sheet of a GPU, or is 12 W for
each CPU thread in use (Lannelongue et al., 2021, Green Algorithms, for a core of unknown model).
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from gristmill.terminal import human_count

PUE = 1.58
KG_PER_KWH = 0.954 * 0.45359237
CORE_WATTS = 12.0
SOURCE = "Strubell et al., 2019, section 2"
# Maximum power of one accelerator in watts, from NVIDIA's data sheets. The first pattern in the device's name is used.
GPU_WATTS: tuple[tuple[str, float], ...] = (
    (r"\bGB200\b", 1200.0),
    (r"\bB200\b", 1000.0),
    (r"\bH200 NVL\b", 600.0),
    (r"\bH200\b", 700.0),
    (r"\bH100 PCIe\b", 350.0),
    (r"\bH100 NVL\b", 400.0),
    (r"\bH100\b", 700.0),
    (r"\bA100.*PCIE?", 300.0),
    (r"\bA100\b", 400.0),
    (r"\bA10\b", 150.0),
    (r"\bL40S\b", 350.0),
    (r"\bL4\b", 72.0),
)


@dataclass(frozen=True)
class Footprint:
    """The cost of a computation. `flops` gives floating-point operations by term, and `joules` is the energy
    of the devices, without PUE; either is None if it is unknown. `energy_from` says how the energy was
    determined, or why it is unknown.
    """

    flops: Mapping[str, float] | None
    device_hours: float
    device: str
    joules: float | None
    energy_from: str
    pue: float = PUE
    kg_per_kwh: float = KG_PER_KWH

    @property
    def kwh(self) -> float | None:
        """The energy in kWh, multiplied by `pue`; None if it is unknown."""
        return None if self.joules is None else self.pue * self.joules / 3.6e6

    @property
    def kg_co2e(self) -> float | None:
        """The emissions in kg of carbon dioxide equivalent; None if the energy is unknown."""
        return None if self.kwh is None else self.kwh * self.kg_per_kwh

    def plain(self) -> dict[str, Any]:
        """Return the cost as JSON data, including `kwh`, `kg_co2e` and the source of the formulas."""
        return {**asdict(self), "kwh": self.kwh, "kg_co2e": self.kg_co2e, "source": SOURCE}

    def __str__(self) -> str:
        energy = "energy unknown: " + self.energy_from
        if self.kwh is not None and self.kg_co2e is not None:
            energy = (
                f"{self.kwh:.3g} kWh ({self.energy_from}; PUE {self.pue:g}), {self.kg_co2e:.3g} kg CO2e "
                f"({self.kg_per_kwh:.3f} kg/kWh; {SOURCE})"
            )
        return f"{operations(self.flops)}, {self.device_hours:.3g} device hours ({self.device}), {energy}"


def operations(flops: Mapping[str, float] | None) -> str:
    """Describe the number of operations in words: the total and its terms, or `operations unknown` if `flops`
    is None.
    """
    if flops is None:
        return "operations unknown"
    terms = ", ".join(f"{name} {human_count(value)}" for name, value in flops.items() if value)
    return f"{human_count(sum(flops.values()))} FLOPs" + (f" ({terms})" if terms else "")


def parse_footprint(facts: Mapping[str, Any]) -> Footprint:
    """Restore a Footprint from the JSON data that `Footprint.plain` returns."""
    return Footprint(**{each.name: facts[each.name] for each in fields(Footprint)})


def add_footprints(costs: Sequence[Footprint]) -> Footprint:
    """Return the sum of one or more costs. The operations of the sum are unknown if those of any cost are
    unknown; likewise its energy.
    """
    known = [cost.flops for cost in costs]
    flops = None
    if all(each is not None for each in known):
        terms = dict.fromkeys(term for each in known for term in each or ())
        flops = {term: sum((each or {}).get(term, 0.0) for each in known) for term in terms}
    joules = None if any(cost.joules is None for cost in costs) else sum(cost.joules or 0.0 for cost in costs)
    devices, how = (
        " and ".join(dict.fromkeys(each)) for each in zip(*((c.device, c.energy_from) for c in costs), strict=True)
    )
    hours = sum(cost.device_hours for cost in costs)
    return replace(costs[0], flops=flops, device_hours=hours, device=devices, joules=joules, energy_from=how)


def footprint(
    flops: Mapping[str, float] | None,
    device_seconds: float,
    device: str,
    threads: int,
    joules: float | None = None,
    measured_by: str = "",
) -> Footprint:
    """Return the cost of `device_seconds` on devices of one kind. If `joules` is None, the energy is computed
    from the device's nominal power; it is unknown for a GPU that is not in GPU_WATTS. `threads` is the number
    of threads of each worker, used only if `device` is `cpu`.
    """
    hours = device_seconds / 3600
    if joules is not None:
        return Footprint(flops, hours, device, joules, f"measured by {measured_by}")
    if device == "cpu":
        watts = CORE_WATTS * threads
        how = f"{CORE_WATTS:g} W x {threads} {'thread' if threads == 1 else 'threads'}, Lannelongue et al., 2021"
        return Footprint(flops, hours, device, watts * device_seconds, how)
    for pattern, watts in GPU_WATTS:
        if re.search(pattern, device):
            return Footprint(flops, hours, device, watts * device_seconds, f"{watts:g} W, its data sheet")
    return Footprint(flops, hours, device, None, f"no nominal power is known for {device}")
