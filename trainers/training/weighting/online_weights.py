"""Create a run's online weights by the method that its config selects."""

from collections.abc import Sequence
from typing import Any

from trainers.config.job import Job
from trainers.config.loss_weighting import ADO
from trainers.config.pretraining import Pretraining
from trainers.data.job_interface import JobSource
from trainers.engine.engine import Engine
from trainers.training.weighting.adaptive_optimization import ADOWeights
from trainers.training.weighting.group_dro import GroupDROWeights, load_reference
from trainers.training.weighting.weights_interface import OnlineWeights


def online_weights_of(
    config: Job, sources: Sequence[JobSource], lengths: Sequence[int], engine: Engine
) -> OnlineWeights[Any] | None:
    """Return the online weights of a run, or None if the run does not use them. `lengths` are the row lengths
    of the run's phases. Raises ConfigError if the reference model of group DRO does not fit the run.
    """
    if not isinstance(config, Pretraining) or config.online_weights is None:
        return None
    names, settings = [source.name for source in sources], config.online_weights
    if isinstance(settings, ADO):
        return ADOWeights(settings, names, config.budget.steps or 0)
    return GroupDROWeights(settings, names, load_reference(config, settings, max(lengths), engine), engine)
