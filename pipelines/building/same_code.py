"""Check that every worker has the same code of a user's corpus stage as the machine that planned the build."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial, update_wrapper

from gristmill.libraries.provenance import check_code
from pipelines.contracts.stage import Cluster, CorpusStage, Item, Result


@dataclass(frozen=True)
class SameCodeCluster:
    """A cluster on which each task first checks that its worker has the same code for `stage` as the machine
    that planned the build. `code` is the result of `provenance` on that machine.
    """

    cluster: Cluster
    step: str
    stage: CorpusStage
    code: Mapping[str, str]

    def map(
        self, function: Callable[[Item], Result], items: Sequence[Item], label: Callable[[Item], str]
    ) -> Iterator[tuple[int, Result]]:
        """Run tasks on the wrapped cluster. Raises UserError if a worker's code for the stage differs from
        `code`.
        """
        checked = partial(_run_checked, function, self.step, self.stage, self.code)
        return self.cluster.map(update_wrapper(checked, function, ("__name__",), ()), items, label)


def _run_checked(
    function: Callable[[Item], Result], step: str, stage: CorpusStage, code: Mapping[str, str], item: Item
) -> Result:
    check_code(step, stage, code)
    return function(item)
