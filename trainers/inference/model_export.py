"""Export a model in Hugging Face layout (config.json, safetensors and tokenizer files, which `AutoTokenizer`
and an auto class can load), and load the model of an export or a run. The auto class depends on the model:

- `AutoModelForCausalLM`: decoders and XLNet.
- `AutoModelForMaskedLM`: encoders, except those named here.
- `AutoModelForSeq2SeqLM`: encoder-decoders.
- `AutoModelForPreTraining`: models with a sentence head, and ELECTRA's discriminator.
- `AutoModel`: CANINE and DeBERTa's discriminator.
- `AutoModelForSequenceClassification`, `AutoModelForTokenClassification`, `AutoModelForQuestionAnswering`
  or `AutoModelForMultipleChoice`: models with the head of a task.

If a discriminator is exported, its generator is in `generator/`, with its own tokenizer files.

`gristmill.json` in the same directory records which run, step, corpus and tokenizer the model comes from, and
whether plain `transformers` can use it. A model that `transformers` cannot run is written in such a way that
`transformers` refuses to load it; only the commands of this package load it. If the run's method freezes its
base, `adapter/` holds the parameters that the method has trained, unless they are merged into the base.
"""

import errno
import json
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from gristmill.config import plain
from gristmill.errors import ConflictError, CorruptFileError, UserError
from gristmill.host import host, lent
from gristmill.storage.disk import LocalPath, discard
from gristmill.storage.lease import lock
from gristmill.storage.store import read_json, write_json
from tokenizer.encode import Encoder
from tokenizer.vocabulary.specials import add_fallback_marks
from trainers.config.architecture import Model
from trainers.config.finetuning import Finetuning
from trainers.config.job import Job
from trainers.inference.base import save_run_adapter, trained_forward
from trainers.inference.export_form import (
    ADAPTER,
    ORIGIN,
    WEIGHTS,
    ExportForm,
    config_of,
    export_form,
    read_origin,
    read_whole,
)
from trainers.inference.task_model import threshold_of
from trainers.inference.tokenizer_export import save_tokenizer
from trainers.models import (
    MODELS,
    build_model,
    give_characters,
    load_parts,
    stack_parameters,
    stock_parts,
    untie_stacks,
    why_not_stock,
)
from trainers.models.heads.stock_heads import stock_task_model
from trainers.runs import checkpoint
from trainers.runs.parent import weight_files
from trainers.runs.run import read_config, read_run, verified_copy

FORMAT = "gristmill-export/1"
_TRIES = 5  # a try fails only if another process exports to the same directory, or if the run is training


def export_checkpoint(run: LocalPath, output: LocalPath, merge: bool = False) -> LocalPath:
    """Export a checkpoint of `run` to `output`: the newest or, in fine-tuning, the best. Returns `output`.
    With `merge`, the parameters that the fine-tuning method has added are merged into the weights of the
    base. An earlier export in `output` is replaced.

    Raises ConflictError if `output` holds files that are not an export. Raises UserError if the path `output`
    does not end in a name, if the run has no checkpoint, if the parameters of its method cannot be merged, or
    if the export cannot be written.
    """
    from safetensors import SafetensorError

    if output.name in ("", ".."):  # it is renamed, and its lease has its name
        raise UserError(f"--output: got {str(output)!r}, expected a path that ends in a name, such as ./model")
    read_run(run)  # raises if this is not a run, before anything is created
    work = output.with_name(f".{output.name}")
    try:
        with lock(work, "exporting", lambda line: print(line, flush=True)):
            for left in work.glob("*.tmp"):
                _remove(left)
            for _ in range(_TRIES):
                if _export(run, output, work, merge):
                    break
            else:
                raise UserError(f"{output}: other processes keep exporting to it; stop them and export again")
    except (OSError, SafetensorError) as error:
        raise UserError(
            f"{output}: the export could not be written ({error}); fix that and run the same command"
        ) from error
    with suppress(OSError):  # another process may have its lease there by now
        work.rmdir()
    return output


def _export(run: LocalPath, output: LocalPath, work: LocalPath, merge: bool) -> bool:
    """Export a checkpoint, unless `output` is already up to date. Returns False if another process removed
    files that this process reads or writes.
    """
    earlier = _origin_of(output)  # read before the checkpoints, so its step is not after the newest checkpoint
    record, config = read_run(run), read_config(run)
    picked = checkpoint.pick(run, print)
    if picked is None:
        raise UserError(f"{run}: has no checkpoint yet, there is nothing to export")
    form = export_form(config, merge)
    origin = {
        "format": FORMAT,
        "run": record["name"],
        "step": picked.step,
        "tokens": picked.tokens,
        "fingerprints": picked.fingerprints,
        "checkpoint": picked.checksum,
        "config": plain(config),
        "adapter": form.is_adapter,
        "threshold": threshold_of(run),
        "transformers": {"loads": form.obstacle is None, "notes": list(form.notes)},
    }
    if output.exists() and any(output.iterdir()):
        if not (output / ORIGIN).exists():
            raise ConflictError(f"{output}: holds files that are not an export; give another --output")
        if _is_export_of(output, origin):
            return True
    attempt = _aside(work)
    attempt.mkdir(parents=True)
    mark = attempt / ".mark"  # shows whether the attempt was removed; libraries would recreate its directory
    mark.touch()
    try:
        _silence_progress_bars()
        for directory in _save_model(run, picked, form, attempt):
            save_tokenizer(verified_copy(run), record["specials"], config, directory)
        names = sorted(str(file.relative_to(attempt)) for file in attempt.rglob("*") if file.is_file() and file != mark)
        for name in names:  # libraries do not flush the files they write to the disk
            with host().open(str(attempt / name)) as written:
                host().fsync(written)
        files = [asdict(attempt.record(name)) for name in names]
        write_json(attempt / ORIGIN, {**origin, "files": files})
        mark.unlink()
    except Exception:
        if mark.exists() and (picked.path / checkpoint.WEIGHTS).exists():
            raise
        return False
    else:
        return _replace(output, attempt, earlier)
    finally:
        discard(attempt)


def _aside(work: LocalPath) -> LocalPath:
    return work / f"{host().unique()}.tmp"


def _remove(left: LocalPath) -> None:
    """Remove a file or a directory. A directory is renamed first, so that no process can publish a part of
    it.
    """
    if not left.is_dir():  # a killed process was about to write its lease
        left.unlink(missing_ok=True)
        return
    gone = _aside(left.parent)
    with suppress(FileNotFoundError):
        left.rename(gone)
    discard(gone)


def _replace(output: LocalPath, attempt: LocalPath, earlier: dict[str, Any] | None) -> bool:
    """Move a finished export to `output`, replacing an earlier one. `output` never holds a partial export.
    Returns False if another process has removed the finished export.

    `earlier` is the `gristmill.json` that `output` had before this export began. If another process has since
    published a later step of the same run, that export is kept.
    """
    chosen = attempt
    replaced: list[LocalPath] = []
    while True:
        try:
            chosen.rename(output)
            break
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                if replaced:
                    with suppress(OSError):  # another process has published an export, or removed this one
                        replaced[-1].rename(output)
                if isinstance(error, FileNotFoundError):
                    return False
                raise
        there = _aside(attempt.parent)
        try:
            output.rename(there)
        except FileNotFoundError:
            continue
        replaced.append(there)
        if _is_later(_origin_of(there), _origin_of(chosen), earlier):
            chosen = there
    output.parent.fsync()
    for export in replaced:
        discard(export)
    return True


def _is_later(other: dict[str, Any] | None, chosen: dict[str, Any] | None, earlier: dict[str, Any] | None) -> bool:
    if other is None or chosen is None or other == earlier:
        return False
    return bool(
        other["run"] == chosen["run"] and other["config"] == chosen["config"] and other["step"] > chosen["step"]
    )


def _origin_of(export: LocalPath) -> dict[str, Any] | None:
    try:
        return read_json(export / ORIGIN)
    except (FileNotFoundError, NotADirectoryError, CorruptFileError):
        return None


def _is_export_of(output: LocalPath, origin: dict[str, Any]) -> bool:
    try:
        published = read_origin(output)
    except CorruptFileError:
        return False
    return {name: value for name, value in published.items() if name not in ("files", "checksum")} == origin


def trained_model(run: LocalPath, picked: checkpoint.Checkpoint) -> Any:
    """Return the model of a checkpoint in fp32 on the CPU, without its loss functions."""
    return trained_forward(run, picked).model


def _with_weights(sizes: Model, specials: dict[str, int], weights: dict[str, Any]) -> Any:
    import torch

    model = build_model(sizes, specials, seed=0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(weights[name])
    return model.eval()


def _silence_progress_bars() -> None:
    from transformers.utils import logging

    logging.disable_progress_bar()


def notes_of(export: LocalPath) -> list[str]:
    """Return an export's notes for users of plain `transformers`, or an empty list if its `gristmill.json` is
    missing or damaged.
    """
    origin = _origin_of(export)
    return [] if origin is None else list(origin["transformers"]["notes"])


def _save_model(run: LocalPath, picked: checkpoint.Checkpoint, form: ExportForm, output: LocalPath) -> list[LocalPath]:
    """Write config.json and the weights, or the adapter. Returns the directories that need tokenizer files.

    A model that plain `transformers` cannot run gets an unknown `model_type`. Otherwise `transformers` would
    silently ignore weights and give different results.
    """
    config, specials = read_config(run), read_run(run)["specials"]
    if form.is_adapter:
        save_run_adapter(run, picked, output / ADAPTER)
        return [output]
    model, sizes = trained_model(run, picked), config.model
    if sizes.boundary_head:  # only pretraining uses it
        del model.boundary_head
    if form.merges:
        assert isinstance(config, Finetuning)
        config.method.merge(model)
    if form.obstacle is not None:
        from safetensors.torch import save_file

        kept = dict(model.named_parameters())
        if hasattr(model, "task_head"):  # pretraining heads are neither trained nor used
            stack = stack_parameters(model, sizes)
            kept = {name: kept[name] for name in kept if name in stack or name.startswith("task_head.")}
        weights = {name: weight.detach().contiguous() for name, weight in kept.items()}
        host().deliver(str(output / WEIGHTS), partial(save_file, weights))
        written = {**model.config.to_dict(), "model_type": f"gristmill_{sizes.architecture}"}
        (output / "config.json").write_text(json.dumps(written, indent=2), encoding="utf-8")
        return [output]
    if sizes.tied_stacks:
        untie_stacks(model, sizes.architecture)
    architecture = MODELS[sizes.architecture]
    if isinstance(config, Finetuning) and config.head_kind is not None:
        model = stock_task_model(model, architecture, specials, config.tasks[0].label_names)
    elif architecture.publish is not None:
        architecture.publish(model, specials)
    if sizes.family != "encoder":
        model.config.use_cache = True
    directories = []
    for name, part in stock_parts(model, sizes).items():
        directories.append(output / name if name else output)
        directories[-1].mkdir(parents=True, exist_ok=True)
        host().deliver(str(directories[-1]), part.save_pretrained)
    return directories


@dataclass(frozen=True)
class Trained:
    """A trained model: a `transformers` model in evaluation mode, the path of its tokenizer.json, the
    configuration of its run and the fingerprints of its checkpoint.
    """

    model: Any
    tokenizer: LocalPath
    config: Job
    fingerprints: dict[str, str]


def load_trained(path: LocalPath) -> Trained:
    """Load the model of an export or a run. A fine-tuning run is read at its best checkpoint, any other run
    at its newest.

    Raises UserError if `path` is neither an export nor a run, if the run has no checkpoint, or if the model
    is an exported adapter or has a task head.
    """
    if (path / ORIGIN).exists():
        _silence_progress_bars()
        return read_whole(path, lambda origin: _load_export(path, origin))
    read_run(path)  # says what is wrong with a path that is not a run
    config = read_config(path)
    _require_language_head(path, config)
    if isinstance(config, Finetuning):
        picked, weights = checkpoint.pick(path, print), None
    else:
        picked, weights = checkpoint.read_newest(path, print) or (None, None)
    if picked is None:
        raise UserError(f"{path}: has no checkpoint yet; let it train until the first one")
    return Trained(trained_forward(path, picked, weights).model, verified_copy(path), config, picked.fingerprints)


def load_checkpoint(run: LocalPath, step: int) -> tuple[Trained, checkpoint.Checkpoint]:
    """Return the model of a run at the checkpoint of `step`, and the checkpoint itself. Raises UserError if
    the checkpoint is missing or damaged, or if the model has a task head.
    """
    config = read_config(run)
    _require_language_head(run, config)
    places = dict(checkpoint.published(run))
    if step not in places:
        there = ", ".join(f"{each:,}" for each in places) or "none"
        raise UserError(f"{run}: has no checkpoint of step {step:,}, it has {there}")
    try:
        picked = checkpoint.load(places[step])
        weights = checkpoint.read_weights(picked)
    except FileNotFoundError:  # CorruptFileError, which says more, is a UserError
        raise UserError(f"{run}: the checkpoint of step {step:,} was removed while it was read") from None
    return Trained(trained_forward(run, picked, weights).model, verified_copy(run), config, picked.fingerprints), picked


def _load_export(path: LocalPath, origin: dict[str, Any]) -> Trained:
    config = config_of(path, origin)
    _require_language_head(path, config)
    return Trained(_exported_model(path, config.model), path / "tokenizer.json", config, origin["fingerprints"])


def _require_language_head(path: LocalPath, config: Job) -> None:
    if isinstance(config, Finetuning) and config.head_kind is not None:
        raise UserError(f"{path}: holds a model with the head of a task, which writes no text; use `trainers predict`")
    if isinstance(config, Finetuning) and (config.method.virtual_tokens or config.method.prefix_length):
        raise UserError(
            f"{path}: was fine-tuned with {config.method.kind}, and only the inputs of its task begin with what that trained; "
            f"use `trainers predict`"
        )


def _exported_model(path: Path, sizes: Model) -> Any:
    import transformers

    if sizes.generator_size is not None:
        network = build_model(sizes, add_fallback_marks(Encoder.load(lent(path / "tokenizer.json")).specials), seed=0)
        load_parts(network, sizes, lambda directory, kind: _part_state(path / directory, kind))
        return network.eval()
    if why_not_stock(sizes) is None and not sizes.mask_decoder and MODELS[sizes.architecture].own_class is None:
        name = json.loads((path / "config.json").read_text(encoding="utf-8"))["architectures"][0]
        return getattr(transformers, name).from_pretrained(lent(path)).eval()
    specials = add_fallback_marks(Encoder.load(lent(path / "tokenizer.json")).specials)
    network = _with_weights(sizes, specials, _stored_tensors(path))
    give_characters(network, sizes, path / "tokenizer.json")
    return network


def _part_state(directory: Path, kind: Any) -> dict[str, Any]:
    return {**kind.from_pretrained(lent(directory)).state_dict(), **_stored_tensors(directory)}


def _stored_tensors(directory: Path) -> dict[str, Any]:
    from safetensors.torch import load_file

    return {name: tensor for file in weight_files(directory) for name, tensor in load_file(lent(file)).items()}
