"""The stored evaluations of a run's checkpoints: `evaluations/NAME/step-00000500.json` with the scores, and a
Parquet file of the same name with a row per item.

`trainers evaluate RUN --checkpoints` writes them. NAME is the suite or the tasks, followed by the settings
that differ from the defaults; a NAME that is too long is cut and ends in a digest. A result belongs to one
checkpoint, identified by its checksum: if the checkpoint of the same step now has another checksum, the
command evaluates the new one.
"""

import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import xxhash

from gristmill.errors import ConfigError, CorruptFileError
from gristmill.storage.disk import LocalPath
from gristmill.storage.parsing import expand_location
from gristmill.storage.store import read_json
from trainers.config.pretraining import PeriodicEvaluation

FORMAT = "gristmill-checkpoint-evaluation/1"
FOLDER = "evaluations"
_NAME_BYTES = 255  # the limit of common file systems


@dataclass(frozen=True)
class StoredEvaluation:
    """The stored result of evaluating a checkpoint. The results of single items are not loaded; they are in
    the file `rows`.

    `checkpoint` is the checksum of the checkpoint. `items` is a digest of the items and their prompts.
    `scores` holds the main score of every task and, if a suite was evaluated, the mean of the suite under the
    name `SUITE.mean`. `record` is the content of the JSON file at `path`.
    """

    path: LocalPath
    name: str
    step: int
    tokens: int
    checkpoint: str
    items: str
    scores: dict[str, dict[str, Any]]
    record: dict[str, Any]

    @property
    def rows(self) -> LocalPath:
        """The Parquet file with a row per item."""
        return self.path.with_suffix(".parquet")

    @property
    def versions(self) -> dict[str, str]:
        """The version of each score's task or suite, keyed by the name of the score."""
        return versions_of(self.scores)

    @property
    def below_or_at_chance(self) -> list[str]:
        """The names of the scores whose verdict is at or below chance. Scores without a verdict are left out."""
        return [name for name, score in self.scores.items() if score.get("verdict", "above") != "above"]


def resolve_evaluation(evaluation: PeriodicEvaluation) -> PeriodicEvaluation:
    """Return the settings of an evaluation with two values filled in: the directory of the tasks' files, by
    default $GRISTMILL_TASKS, and the limit on items, by default the suite's.

    Raises ConfigError for an unknown suite or a missing number of shots, and UserError if files of the suite
    are missing.
    """
    from trainers.tasks.load_task import load_suite, load_task
    from trainers.tasks.task_files import VARIABLE, data_directory, find_split

    data = evaluation.data or os.environ.get(VARIABLE)
    if data is not None:
        evaluation = replace(evaluation, data=expand_location(data, "evaluation.data"))
    suite = load_suite(evaluation.suite)
    if suite.shots and not evaluation.shots:
        given = ", ".join(str(shots) for shots in suite.shots if shots)
        raise ConfigError(f"evaluation.shots: got 0, the suite {evaluation.suite} has several; choose one of {given}")
    # `evaluate --checkpoints` names its results after the limit that is in effect.
    evaluation = replace(evaluation, limit=evaluation.limit or suite.limit)
    for column in suite.columns:
        find_split(load_task(column.task), column.split, data_directory(evaluation.data))
    return evaluation


def evaluation_name(title: str, settings: Mapping[str, Any]) -> str:
    """Return the name of an evaluation, `TITLE,NAME=VALUE,...`, with `settings` sorted by name. Each `/` in
    the title becomes `_`. A name that is too long for a directory is cut short and ends in a digest of the
    full name.
    """
    name = ",".join([title.replace("/", "_"), *(f"{name}={value}" for name, value in sorted(settings.items()))])
    whole = name.encode()
    if len(whole) <= _NAME_BYTES:
        return name
    return f"{whole[:200].decode(errors='ignore')}...{xxhash.xxh3_64_hexdigest(whole)}"


def versions_of(scores: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Return the version of each score. Scores that were stored before tasks had versions have version 1."""
    return {name: score.get("version", "1") for name, score in scores.items()}


def result_path(run: LocalPath, name: str, step: int) -> LocalPath:
    """Return the path of the file with the scores of evaluation `name` at checkpoint `step`."""
    return run / FOLDER / name / f"step-{step:08d}.json"


def read_evaluation(path: LocalPath) -> StoredEvaluation | None:
    """Read a stored evaluation from its JSON file. Returns None if the file is missing, damaged or of another
    format.
    """
    try:
        record = read_json(path)
    except (FileNotFoundError, CorruptFileError):
        return None
    if record.get("format") != FORMAT:
        return None
    known = {name: record[name] for name in ("name", "step", "tokens", "checkpoint", "items", "scores")}
    return StoredEvaluation(path=path, record=record, **known)


def read_evaluations(run: LocalPath, name: str | None = None) -> list[StoredEvaluation]:
    """Return the stored evaluations of a run, ordered by name and step: those called `name` or, by default,
    all. Skips files that cannot be read.
    """
    found = []
    folder, files = (run / FOLDER / name, "step-*.json") if name else (run / FOLDER, "*/step-*.json")
    with suppress(FileNotFoundError):
        for path in sorted(folder.glob(files)):
            if (result := read_evaluation(path)) is not None:
                found.append(result)
    return found
