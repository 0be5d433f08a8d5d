"""Launching: in this process, under torchrun, or on several workers with Ray Train. The only file here that imports
ray.

The run directory and the numbers are the same under all three. On a cluster the run directory must be on storage that
every worker sees.
"""

import os
import shutil
import signal
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from pipelines.contracts.config import parse, plain
from pipelines.contracts.errors import UserError
from pipelines.contracts.remote import is_url
from trainers.config import Pretraining
from trainers.data import Corpus, corpus_of
from trainers.progress import followed
from trainers.run import STOP
from trainers.sinks import require_libraries


def launch(config: Pretraining, corpus: Corpus, run: Path, workers: int, show: Callable[[str], None]) -> None:
    """Train with the resolved `config` until it is finished or stopped. Under torchrun `workers` does not matter."""
    require_libraries(config.sinks)
    if "RANK" in os.environ or workers == 1:
        from trainers.loop import train

        train(config, corpus, run, show)
    else:
        absolute = tuple(d if is_url(d) else str(Path(d).resolve()) for d in config.data.corpora)
        config = replace(config, data=replace(config.data, corpora=absolute))
        with followed(run / "log.jsonl", show), _sigterm_asks_to_stop(run):
            _launch_on_ray(config, run.resolve(), workers)


@contextmanager
def _sigterm_asks_to_stop(run: Path) -> Iterator[None]:
    """While the block runs, SIGTERM to this process leaves the file that the workers' loop looks for after every step."""
    (run / STOP).unlink(missing_ok=True)
    before = signal.signal(signal.SIGTERM, lambda *_: (run / STOP).touch())
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
        (run / STOP).unlink(missing_ok=True)


def _launch_on_ray(config: Pretraining, run: Path, workers: int) -> None:
    import ray
    import torch
    from ray.train import RunConfig, ScalingConfig
    from ray.train.torch import TorchConfig, TorchTrainer

    on_gpu = torch.cuda.is_available()
    started = not ray.is_initialized()
    if started:
        _start_ray(ray)
    each = _each(ray, workers, "GPU" if on_gpu else "CPU")
    # Ray wants storage that all workers see, like the run directory; what it leaves there is of no use afterwards.
    results = run / ".ray"
    try:
        TorchTrainer(
            _work,
            train_loop_config={"config": plain(config), "run": str(run)},
            scaling_config=ScalingConfig(
                num_workers=workers, use_gpu=on_gpu, resources_per_worker=None if on_gpu else each
            ),
            torch_config=TorchConfig(backend="nccl" if on_gpu else "gloo"),
            run_config=RunConfig(name=run.name, storage_path=str(results)),
        ).fit()
    except Exception as error:
        raise _user_error(error) from error
    finally:
        shutil.rmtree(results, ignore_errors=True)
        if started:
            ray.shutdown()


def _start_ray(ray: Any) -> None:
    """Join the cluster that RAY_ADDRESS names, or start one on this machine without dashboard and usage reports."""
    # Each of these would start another actor, or wait for one, before the first step.
    for feature in ("RAY_USAGE_STATS_ENABLED", "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER", "RAY_TRAIN_METRICS_ENABLED"):
        os.environ.setdefault(feature, "0")
    paths = os.pathsep.join([str(Path(__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {"env_vars": {"PYTHONPATH": paths, "RAY_CHDIR_TO_TRIAL_DIR": "0"}}
    alone = {} if os.environ.get("RAY_ADDRESS") else {"include_dashboard": False}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ray.init(log_to_driver=False, logging_level="ERROR", runtime_env=environment, **alone)


def _each(ray: Any, workers: int, kind: str) -> dict[str, int]:
    """The most CPUs (Ray gives a worker as many threads) or GPUs that each of the workers can have.

    UserError where the nodes can never hold that many workers: Ray would wait for ever.
    """
    nodes = [int(node["Resources"].get(kind, 0)) for node in ray.nodes() if node["Alive"]]
    for count in range(max(nodes), 0, -1):
        if sum(node // count for node in nodes) >= workers:
            return {kind: count}
    raise UserError(f"--workers: got {workers}, the Ray cluster has {sum(nodes)} {kind}s; allowed 1 to {sum(nodes)}")


def _work(arguments: dict[str, Any]) -> None:
    """One worker of a Ray Train run."""
    from trainers.loop import train

    config = parse(Pretraining, arguments["config"], "resolved.yaml")
    corpus = corpus_of(config)
    train(config, corpus, Path(arguments["run"]), None)


def _user_error(error: BaseException) -> BaseException:
    """The UserError that a worker raised, where there is one among the causes."""
    seen: BaseException | None = error
    while seen is not None:
        for failure in getattr(seen, "worker_failures", {}).values():
            found = _user_error(failure)
            if isinstance(found, UserError):
                return found
        if isinstance(seen, UserError):
            return seen
        seen = seen.__cause__
    return error
