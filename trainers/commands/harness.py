"""`harness`: evaluate the model of a run or an export on tasks of lm-evaluation-harness."""

import argparse
import os
import sys

from gristmill.config import near_match
from gristmill.errors import ConfigError, UserError
from gristmill.libraries.extras import install_extra
from gristmill.storage.parsing import parse_local
from gristmill.storage.paths import local_path
from gristmill.terminal import printable
from trainers.commands.settings import split_settings

_NAMED = ("task", "limit", "shots", "seed", "pseudo")


def add_commands(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command `harness`."""
    harness = commands.add_parser("harness", help="score tasks of lm-evaluation-harness whose data is on this machine")
    harness.add_argument("model", metavar="RUN_OR_EXPORT", type=local_path)
    harness.add_argument(
        "settings",
        metavar="name=value",
        nargs="+",
        help="task=NAME|FILE.yaml (A,B for several); then limit=N (items), shots=N, seed=N, pseudo=token|within_word (encoders)",
    )
    harness.add_argument("--output", metavar="FILE.json", type=local_path, help="the harness's results and items")
    harness.set_defaults(handler=_harness)


def _harness(options: argparse.Namespace) -> int:
    named, others = split_settings(options.settings, _NAMED)
    if others:
        near = near_match(others[0].partition("=")[0], _NAMED)
        raise ConfigError(f"{others[0]!r}: expected {', '.join(f'{name}=' for name in _NAMED)}{near}")
    if "task" not in named:
        raise ConfigError("task: missing; give task=NAME or task=FILE.yaml")
    if options.output is not None and options.output.suffix != ".json":
        raise ConfigError(f"--output: got {options.output}, expected a name that ends in .json")
    for name in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE"):  # read when the libraries are imported
        os.environ[name] = "1"
    from gristmill.config import override, parse
    from trainers.evaluation.suites.run_evaluation import EvaluationSettings

    given = [f"{name}={named[name]}" for name in _NAMED if name in named and name != "task"]
    settings: EvaluationSettings = parse(EvaluationSettings, override({}, given), "harness")
    try:
        from trainers.evaluation.harness_model import harness_lines, load_tasks, run_harness
    except ImportError as error:
        raise UserError(f"harness needs lm-eval ({error}); install it: {install_extra('harness')}") from error
    from trainers.evaluation.scoring.scorer import Scorer
    from trainers.report.task_table import align

    tasks = load_tasks(named["task"].split(","))
    scorer = Scorer.open(parse_local(str(options.model), "model"), settings.pseudo)
    print(printable(f"{options.model}: scored {scorer.form.described}"), file=sys.stderr, flush=True)
    shots = settings.shots if "shots" in named else None
    made = run_harness(scorer, tasks, settings.limit, shots, settings.seed)
    print("\n".join(printable(line) for line in align(harness_lines(made))))
    if options.output is not None:
        import json

        kept = {name: made[name] for name in ("results", "versions", "n-shot", "n-samples", "samples")}
        record = {"model": str(options.model), "form": scorer.form.described, **kept}
        options.output.write_atomic(json.dumps(record, default=str, indent=1).encode())
        print(options.output)
    return 0
