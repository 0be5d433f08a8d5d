"""Run our models on tasks of lm-evaluation-harness, which the extra `harness` installs."""

import logging
import os
from collections.abc import Sequence
from typing import Any

from lm_eval.api.instance import Instance
from lm_eval.api.model import LM
from lm_eval.evaluator import simple_evaluate
from lm_eval.tasks import TaskManager

from gristmill.errors import ConfigError, UserError
from gristmill.terminal import printable
from trainers.evaluation.scoring.scorer import Scorer
from trainers.evaluation.suites.written_result import generators_of
from trainers.tasks.harness_format.harness_task import read_generation
from trainers.tasks.schema.task_prompt import Generation

_BOOTSTRAP = 1000  # samples for the standard errors that have no formula
# Else the library draws them in forks of this process, which has threads: one may wait for ever. The numbers are the same.
os.environ.setdefault("DISABLE_MULTIPROC", "1")


class HarnessModel(LM):
    """A model of lm-evaluation-harness whose requests are answered by a `Scorer`.

    Three things differ from the library's own `HFLM`. A context that is too long loses its beginning but
    keeps its `<bos>`. The log-likelihood of whole texts uses windows that overlap by half. The random numbers
    of a sampled text depend only on `seed` and on the request.
    """

    def __init__(self, scorer: Scorer, seed: int = 0) -> None:
        super().__init__()
        self._scorer, self._seed = scorer, seed

    @property
    def tokenizer_name(self) -> str:
        """The model's name with `__` for `/`, under which the library caches requests."""
        return self._scorer.name.replace("/", "__")

    def loglikelihood(self, requests: Sequence[Instance], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
        """Return, for each continuation, its log-likelihood in nats and whether greedy decoding would produce
        it.
        """
        pairs = [request.args for request in requests]
        found = self._scorer.score([context for context, _ in pairs], [text for _, text in pairs])
        return list(zip(found.log_likelihood.tolist(), found.greedy.tolist(), strict=True))

    def loglikelihood_rolling(self, requests: Sequence[Instance], disable_tqdm: bool = False) -> list[float]:
        """Return the log-likelihood of each text in nats."""
        found, _ = self._scorer.score_texts([request.args[0] for request in requests])
        nats: list[float] = found.log_likelihood.tolist()
        return nats

    def generate_until(self, requests: Sequence[Instance], disable_tqdm: bool = False) -> list[str]:
        """Return what the model writes after each context, up to a stop sequence or the token limit of the
        request.
        """
        texts = [""] * len(requests)
        alike: dict[Generation, list[int]] = {}
        for number, request in enumerate(requests):
            how = read_generation(f"{request.task_name}: generation_kwargs", request.args[1], ())
            alike.setdefault(how, []).append(number)
        for how, numbers in alike.items():
            names = [f"{requests[n].task_name}/{requests[n].doc_id}/{requests[n].idx}" for n in numbers]
            written = self._scorer.write([requests[n].args[0] for n in numbers], how, generators_of(names, self._seed))
            for number, each in zip(numbers, written, strict=True):
                texts[number] = each.text
        return texts


def load_tasks(names: Sequence[str]) -> list[Any]:
    """Load tasks, given by name or by the path of a YAML file, with their data. Raises ConfigError for an
    unknown name, and UserError for a task that cannot be loaded.
    """
    logging.getLogger("lm_eval").setLevel(logging.ERROR)
    # The library has some 10,000 files of tasks, and listing them takes seconds.
    manager = TaskManager(include_defaults=any(not name.endswith((".yaml", ".yml")) for name in names))
    tasks: dict[str, Any] = {}
    for name in names:
        try:
            tasks |= manager.load([name])["tasks"]
        except KeyError:
            raise ConfigError(f"task: got {name!r}, expected a task of lm-evaluation-harness or a YAML file") from None
        except (OSError, ValueError) as error:
            reason = printable(str(error).splitlines()[0]) if str(error) else type(error).__name__
            raise UserError(
                f"task: {name} cannot be loaded ({reason}); its data must be on this machine: name the files in "
                f"dataset_kwargs.data_files of a YAML file with dataset_path json"
            ) from error
    return list(tasks.values())


def run_harness(
    scorer: Scorer, tasks: Sequence[Any], limit: int | None, shots: int | None, seed: int
) -> dict[str, Any]:
    """Run loaded tasks, each on its first `limit` items (None: all), and return the report of
    lm-evaluation-harness. If `shots` is None, each task sets its own number of few-shot examples.
    """
    made: dict[str, Any] = simple_evaluate(
        HarnessModel(scorer, seed),
        tasks=list(tasks),
        task_manager=TaskManager(include_defaults=False),
        num_fewshot=shots,
        limit=limit,
        bootstrap_iters=_BOOTSTRAP,
        random_seed=seed,
        numpy_random_seed=seed,
        torch_random_seed=seed,
        fewshot_random_seed=seed,
    )
    return made


def harness_lines(made: dict[str, Any]) -> list[Sequence[str]]:
    """Return the scores of a report of `run_harness` as a table: a header, and a row for every task and
    metric.
    """
    rows: list[Sequence[str]] = [("task", "items", "score", "value", "error")]
    for task, scores in made["results"].items():
        items = made["n-samples"][task]["effective"]
        for key, value in scores.items():
            name, _, kind = key.partition(",")
            if not kind or name.endswith("_stderr"):
                continue
            error = scores.get(f"{name}_stderr,{kind}")
            shown = f"{error:.4f}" if isinstance(error, float) else ""
            rows.append((task, f"{items:,}", name, f"{value:.4f}", shown))
    return rows
