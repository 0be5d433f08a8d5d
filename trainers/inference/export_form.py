"""What an export contains, and whether plain `transformers` can use it."""

import json
from dataclasses import dataclass
from typing import Any

from gristmill.errors import CorruptFileError, UserError
from gristmill.storage.disk import LocalPath
from gristmill.storage.location import FileRecord
from gristmill.storage.store import read_json
from trainers.config.finetuning import Finetuning
from trainers.config.job import Job
from trainers.config.job_kinds import parse_job
from trainers.models import MODELS, why_not_stock
from trainers.models.heads.stock_heads import why_not_stock_head

ORIGIN, WEIGHTS, ADAPTER = "gristmill.json", "model.safetensors", "adapter"
_INDEX = "model.safetensors.index.json"


@dataclass(frozen=True)
class ExportForm:
    """The form of a run's export: an adapter if `is_adapter`, otherwise a model, into which the parameters
    that its method has added are merged if `merges`. `obstacle` is why plain `transformers` cannot compute
    the model, or None if it can. `notes` are what users of the export must know.
    """

    is_adapter: bool
    merges: bool
    obstacle: str | None
    notes: tuple[str, ...]


def export_form(config: Job, merge: bool) -> ExportForm:
    """Return the form of a run's export. Raises ConfigError if `merge` is set and there is nothing to merge
    or no way to do it.
    """
    if not isinstance(config, Finetuning):
        return ExportForm(False, False, why_not_stock(config.model), _notes(config))
    method = config.method
    if merge and not method.mergeable:
        raise UserError(
            f"--merge: the run's method is {method.kind}, which adds what no weight of the base can hold; leave it out"
        )
    if method.freezes and not merge:
        note = (
            f"adapter/ holds what {method.kind} has trained, without its base {config.init.path if config.init else ''}"
        )
        return ExportForm(True, False, None, (note.rstrip(),))
    obstacle = why_not_stock(config.model)
    if obstacle is None and config.head_kind is not None:
        model, head = config.model, config.head
        obstacle = why_not_stock_head(MODELS[model.architecture], model, config.head_kind, head.pooling, config.layers)
    return ExportForm(False, method.freezes, obstacle, _task_notes(config, obstacle))


def _notes(config: Job) -> tuple[str, ...]:
    notes = []
    if reason := why_not_stock(config.model):
        notes.append(f"transformers does not load it: {reason}; `python -m trainers generate` and `evaluate` do")
    if config.model.family == "decoder" and config.objective.sees_prefix:
        notes.append(
            "trained with a prefix that sees itself in both directions; transformers attends causally, with another loss; "
            "`python -m trainers generate` and `evaluate` attend as in training"
        )
    return tuple(notes)


def _task_notes(config: Finetuning, obstacle: str | None) -> tuple[str, ...]:
    if obstacle is not None:
        return (f"transformers does not load it: {obstacle}; `python -m trainers predict` uses the run",)
    return ()


def read_origin(export: LocalPath) -> dict[str, Any]:
    """Verify every file of an export and return its `gristmill.json`. Raises CorruptFileError for a file that
    has changed, or one that every export needs and this one lacks.
    """
    origin = read_json(export / ORIGIN, "export again")
    names = {entry["path"] for entry in origin["files"]}
    for entry in origin["files"]:
        export.verify(FileRecord(**entry))
    required = {"tokenizer.json", "tokenizer_config.json"}
    if origin.get("adapter"):
        required.add(f"{ADAPTER}/{ORIGIN}")
    elif _INDEX in names:
        index = json.loads((export / _INDEX).read_text(encoding="utf-8"))
        required.update({"config.json", *index["weight_map"].values()})
    else:
        required.update({"config.json", WEIGHTS})
    if missing := sorted(required - names):
        raise CorruptFileError(f"{export}: has no {missing[0]}; export again")
    return origin


def read_export(path: LocalPath) -> tuple[dict[str, Any], Job]:
    """Return (the `gristmill.json` of a verified export, the configuration of its run). Raises UserError if
    the export is an adapter, which is no model by itself.
    """
    origin = read_origin(path)
    if origin.get("adapter"):
        raise UserError(f"{path}: holds an adapter without its base; give the run, or export it with --merge")
    return origin, parse_job(origin["config"], str(path / ORIGIN))
