"""Determine the form of an export (what it contains, and whether plain `transformers` can use it), and verify
and read exports.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeVar, cast

from gristmill.errors import CorruptFileError, UserError
from gristmill.host import host
from gristmill.storage.disk import LocalPath
from gristmill.storage.location import FileRecord
from gristmill.storage.store import read_json
from trainers.config.finetuning import Finetuning
from trainers.config.job import Job
from trainers.config.job_kinds import parse_job
from trainers.config.pretraining import Pretraining
from trainers.models import MODELS, why_not_stock
from trainers.models.heads.stock_heads import why_not_stock_head
from trainers.objectives import Objective

ORIGIN, WEIGHTS, ADAPTER = "gristmill.json", "model.safetensors", "adapter"
_INDEX = "model.safetensors.index.json"
_TRIES, _PAUSE_SECONDS = 5, 0.2  # an export is replaced with two renames, one right after the other
Result = TypeVar("Result")
_CHARACTERS = (
    "transformers reads the characters of a text; its results are those of training with padding to a multiple of 128 that "
    "leaves 8 places or more"
)


@dataclass(frozen=True)
class ExportForm:
    """The form of a run's export. `is_adapter` says whether the export is an adapter without its base, and
    `merges` whether the parameters that the run's fine-tuning method has added are merged into the model.
    `obstacle` is the reason, if any, why plain `transformers` cannot run the whole model. `notes` are lines
    for users of the export.
    """

    is_adapter: bool
    merges: bool
    obstacle: str | None
    notes: tuple[str, ...]


def export_form(config: Job, merge: bool) -> ExportForm:
    """Return the form of a run's export. `merge` asks for the parameters of the run's method to be merged
    into the base; raises UserError if they cannot be.
    """
    if not isinstance(config, Finetuning):
        return ExportForm(False, False, why_not_stock(config.model), _notes(config))
    method = config.method
    if merge and not method.mergeable:
        raise UserError(
            f"--merge: the run's method is {method.kind}, whose parameters cannot be merged into weights of the base; "
            f"leave it out"
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
    if config.model.mask_decoder:
        notes.append(
            "trained with the enhanced mask decoder, which transformers lacks: it has the states of tasks, and other logits for "
            "masked tokens; `python -m trainers fill-mask` and `evaluate` have those of training"
        )
    if config.model.traits.characters:
        notes.append(_CHARACTERS)
        head = "output layer for subwords" if config.model.character_buckets is None else "decoder of characters"
        notes.append(
            f"transformers has no {head}: AutoModel loads the encoder, `python -m trainers evaluate` all of it"
        )
    if config.objective.contrast is not None:
        notes.append("its output layer for masked tokens was not trained with its states; use the states")
    if config.model.family == "decoder" and config.objective.sees_prefix:
        notes.append(
            "trained with bidirectional attention within a prefix; transformers attends causally, which gives another loss; "
            "`python -m trainers generate` and `evaluate` attend as in training"
        )
    return tuple(notes)


def _task_notes(config: Finetuning, obstacle: str | None) -> tuple[str, ...]:
    if obstacle is not None:
        return (f"transformers does not load it: {obstacle}; `python -m trainers predict` uses the run",)
    return (_CHARACTERS,) if config.model.traits.characters else ()


def read_whole(export: LocalPath, read: Callable[[dict[str, Any]], Result]) -> Result:
    """Verify every file of an export, call `read` with the content of `gristmill.json`, and return its
    result. If the export is replaced meanwhile, start again.

    Raises CorruptFileError if a file is damaged or missing, and UserError if there is no export or it keeps
    being replaced.
    """
    for _ in range(_TRIES):
        origin = _origin(export)
        if origin is not None:
            try:
                _verify(export, origin)
                result = read(origin)
            except (CorruptFileError, FileNotFoundError):
                if _origin(export) == origin:
                    raise
            else:
                if _origin(export) == origin:
                    return result
        host().sleep(_PAUSE_SECONDS)
    raise UserError(f"{export}: was replaced or removed while it was read; export again, or run the same command again")


def read_origin(export: LocalPath) -> dict[str, Any]:
    """Verify all files of an export and return its `gristmill.json`. Raises CorruptFileError if a file is
    damaged or missing, and UserError if there is no export.
    """
    return read_whole(export, lambda origin: origin)


def _origin(export: LocalPath) -> dict[str, Any] | None:
    try:
        return read_json(export / ORIGIN, "export again")
    except FileNotFoundError:
        return None


def _verify(export: LocalPath, origin: dict[str, Any]) -> None:
    names = {entry["path"] for entry in origin["files"]}
    for entry in origin["files"]:
        try:
            export.verify(FileRecord(**entry))
        except CorruptFileError:
            raise CorruptFileError(
                f"{export / entry['path']}: is missing or not what {ORIGIN} recorded; export again"
            ) from None
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


def read_export(path: LocalPath) -> tuple[dict[str, Any], Job]:
    """Verify an export. Return its `gristmill.json` and the configuration of its run. Raises CorruptFileError
    if a file is damaged or missing, and UserError if there is no export or the export is an adapter.
    """
    origin = read_origin(path)
    return origin, config_of(path, origin)


def config_of(export: LocalPath, origin: dict[str, Any]) -> Job:
    """Return the configuration of the run that an export comes from, with only those pretraining heads that
    the export contains. Raises UserError if the export is an adapter.
    """
    if origin.get("adapter"):
        raise UserError(f"{export}: holds an adapter without its base; give the run, or export it with --merge")
    config = parse_job(origin["config"], str(export / ORIGIN))
    if isinstance(config, Pretraining):
        objective = cast(Objective, config.objective.exported)
        return replace(config, objective=objective, model=replace(config.model, boundary_head=False))
    return config
