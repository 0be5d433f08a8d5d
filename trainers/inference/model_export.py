"""Export in Hugging Face layout: config.json, safetensors and tokenizer files that `AutoTokenizer` and an
auto class load.

The auto class is `AutoModelForCausalLM`, `MaskedLM` or `Seq2SeqLM`, and for tasks `SequenceClassification`,
`TokenClassification`, `QuestionAnswering` or `MultipleChoice`. `gristmill.json` in the same directory records
which run, step, corpus and tokenizer the model comes from, and whether plain `transformers` can use it. A
model that `transformers` cannot compute is written so that it refuses to load it; the commands of this
package load it. If the run's method freezes its base, `adapter/` has the parameters that the method has
trained, unless they are merged.
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
from trainers.inference.export_form import ADAPTER, ORIGIN, WEIGHTS, ExportForm, export_form, read_export, read_origin
from trainers.inference.tokenizer_export import save_tokenizer
from trainers.models import MODELS, build_model, stack_parameters, untie_stacks, why_not_stock
from trainers.models.heads.stock_heads import stock_task_model
from trainers.runs import checkpoint
from trainers.runs.run import read_config, read_run, verified_copy

FORMAT = "gristmill-export/1"
_TRIES = 5  # each fails only where another process exports to the same directory, or the run trains


def export_checkpoint(run: LocalPath, output: LocalPath, merge: bool = False) -> LocalPath:
    """Export a checkpoint of `run` to `output`: the newest, or in fine-tuning the best. Returns `output`.
    With `merge`, the parameters that a method of fine-tuning has added are merged into the weights of the
    base.

    An earlier export there is replaced. Raises ConflictError if the directory has anything else. Exports to
    the same directory take turns by the lease of the directory `.NAME` next to it, in which each is also
    prepared. A process that has lost the lease may notice that its attempt was removed, or that another
    export was published; it then checks again.
    """
    from safetensors import SafetensorError

    read_run(run)  # refuses what is no run before anything is created
    work = output.with_name(f".{output.name}")
    try:
        with lock(work, "exporting", lambda line: print(line, flush=True)):
            for left in work.glob("*.tmp"):
                _remove(left)
            for _ in range(_TRIES):
                if _export(run, output, work, merge):
                    break
            else:
                raise UserError(f"{output}: other processes export to it all the time; end them and export again")
    except (OSError, SafetensorError) as error:
        raise UserError(
            f"{output}: the export could not be written ({error}); fix that and run the same command"
        ) from error
    with suppress(OSError):  # another process may have its lease there by now
        work.rmdir()
    return output


def _export(run: LocalPath, output: LocalPath, work: LocalPath, merge: bool) -> bool:
    """Export, unless that is done; False where another process removed what this one reads or writes."""
    earlier = _origin_of(output)  # read before the checkpoints, so it is of no later step than the newest of them
    record, config = read_run(run), read_config(run)
    found = checkpoint.pick(run, print)
    if found is None:
        raise UserError(f"{run}: has no checkpoint yet, there is nothing to export")
    form = export_form(config, merge)
    origin = {
        "format": FORMAT,
        "run": record["name"],
        "step": found.step,
        "tokens": found.tokens,
        "fingerprints": found.fingerprints,
        "checkpoint": found.checksum,
        "config": plain(config),
        "adapter": form.is_adapter,
        "transformers": {"loads": form.obstacle is None, "notes": list(form.notes)},
    }
    if output.exists() and any(output.iterdir()):
        if not (output / ORIGIN).exists():
            raise ConflictError(f"{output}: holds files that are no export; give another --output")
        if _is_export_of(output, origin):
            return True
    attempt = _aside(work)
    attempt.mkdir(parents=True)
    mark = attempt / ".mark"  # missing once the attempt was removed, though libraries make its directory again
    mark.touch()
    try:
        _silence_progress_bars()
        _save_model(run, found, form, attempt)
        save_tokenizer(verified_copy(run), record["specials"], config, attempt)
        names = sorted(str(file.relative_to(attempt)) for file in attempt.rglob("*") if file.is_file() and file != mark)
        for name in names:  # what libraries write does not reach the disk by itself
            with host().open(str(attempt / name)) as written:
                host().fsync(written)
        files = [asdict(attempt.record(name)) for name in names]
        write_json(attempt / ORIGIN, {**origin, "files": files})
        mark.unlink()
    except Exception:
        if mark.exists() and (found.path / checkpoint.WEIGHTS).exists():
            raise
        return False
    else:
        return _replace(output, attempt, earlier)
    finally:
        discard(attempt)


def _aside(work: LocalPath) -> LocalPath:
    """Return a temporary directory in `work`. Leftovers are removed by the next export to the same path."""
    return work / f"{host().unique()}.tmp"


def _remove(left: LocalPath) -> None:
    """Remove a directory in one operation, by renaming it first, so that no process publishes a part of it."""
    gone = _aside(left.parent)
    with suppress(FileNotFoundError):
        left.rename(gone)
    discard(gone)


def _replace(output: LocalPath, attempt: LocalPath, earlier: dict[str, Any] | None) -> bool:
    """Move a finished export to `output`, replacing an earlier one. `output` never holds a partial export.

    An export of a later step of the same run stays, unless it is `earlier`, which was there before. A directory is
    not renamed over another, so each process knows what it replaces. False if what was to be published is gone.
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
                    with suppress(OSError):  # another process has published one, or removed this one
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
    """Whether an export is of a later step than the chosen one, of the same run, and not the earlier one."""
    if other is None or chosen is None or other == earlier:
        return False
    return bool(
        other["run"] == chosen["run"] and other["config"] == chosen["config"] and other["step"] > chosen["step"]
    )


def _origin_of(export: LocalPath) -> dict[str, Any] | None:
    """Return an export's `gristmill.json`; None if it is missing or damaged."""
    try:
        return read_json(export / ORIGIN)
    except (FileNotFoundError, NotADirectoryError, CorruptFileError):
        return None


def _is_export_of(output: LocalPath, origin: dict[str, Any]) -> bool:
    """Whether `output` is an intact export of this origin."""
    try:
        found = read_origin(output)
    except CorruptFileError:
        return False
    return {name: value for name, value in found.items() if name not in ("files", "checksum")} == origin


def trained_model(run: LocalPath, found: checkpoint.Checkpoint) -> Any:
    """Return the model of a checkpoint, in fp32 on the CPU."""
    return trained_forward(run, found).model


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
    """Return what users of plain `transformers` must know about an export."""
    return list(read_json(export / ORIGIN)["transformers"]["notes"])


def _save_model(run: LocalPath, found: checkpoint.Checkpoint, form: ExportForm, output: LocalPath) -> None:
    """Write config.json and the weights, or the adapter. A model that plain `transformers` cannot compute gets a
    `model_type` unknown to it; otherwise it would silently leave out weights and give different results.
    """
    config, specials = read_config(run), read_run(run)["specials"]
    if form.is_adapter:
        save_run_adapter(run, found, output / ADAPTER)
        return
    model, sizes = trained_model(run, found), config.model
    if form.merges:
        assert isinstance(config, Finetuning)
        config.method.merge(model)
    if form.obstacle is not None:
        from safetensors.torch import save_file

        kept = dict(model.named_parameters())
        if hasattr(model, "task_head"):  # the heads of pretraining are not used, and not trained
            stack = stack_parameters(model, sizes)
            kept = {name: kept[name] for name in kept if name in stack or name.startswith("task_head.")}
        weights = {name: weight.detach().contiguous() for name, weight in kept.items()}
        host().deliver(str(output / WEIGHTS), partial(save_file, weights))
        written = {**model.config.to_dict(), "model_type": f"gristmill_{sizes.architecture}"}
        (output / "config.json").write_text(json.dumps(written, indent=2), encoding="utf-8")
        return
    if sizes.tied_stacks:
        untie_stacks(model, sizes.architecture)
    architecture = MODELS[sizes.architecture]
    if isinstance(config, Finetuning) and config.head_kind is not None:
        model = stock_task_model(model, architecture, specials, config.tasks[0].label_names)
    elif architecture.publish is not None:
        architecture.publish(model, specials)
    if sizes.family != "encoder":
        model.config.use_cache = True
    host().deliver(str(output), model.save_pretrained)


@dataclass(frozen=True)
class Trained:
    """A trained model, ready to use: a `transformers` model, its tokenizer.json, its configuration and the
    fingerprints of its origin.
    """

    model: Any
    tokenizer: LocalPath
    config: Job
    fingerprints: dict[str, str]


def load_trained(path: LocalPath) -> Trained:
    """Return the model of an export or of a run; of a run, at its newest checkpoint, or in fine-tuning at the
    best.

    Raises UserError if `path` is neither, if the run has no checkpoint yet, or if the model has a task head
    and so cannot write text.
    """
    if (path / ORIGIN).exists():
        _silence_progress_bars()
        origin, config = read_export(path)
        _require_language_head(path, config)
        return Trained(_exported_model(path, config.model), path / "tokenizer.json", config, origin["fingerprints"])
    read_run(path)  # says what is wrong with a path that is no run
    config = read_config(path)
    _require_language_head(path, config)
    if isinstance(config, Finetuning):
        found, weights = checkpoint.pick(path, print), None
    else:
        found, weights = checkpoint.read_newest(path, print) or (None, None)
    if found is None:
        raise UserError(f"{path}: has no checkpoint yet; let it train until the first one")
    return Trained(trained_forward(path, found, weights).model, verified_copy(path), config, found.fingerprints)


def _require_language_head(path: LocalPath, config: Job) -> None:
    if isinstance(config, Finetuning) and config.head_kind is not None:
        raise UserError(f"{path}: holds a model with the head of a task, which writes no text; use `trainers predict`")


def _exported_model(path: Path, sizes: Model) -> Any:
    """Load the model of an export with the class named in its config.json."""
    import transformers
    from safetensors.torch import load_file

    if why_not_stock(sizes) is None:
        name = json.loads((path / "config.json").read_text(encoding="utf-8"))["architectures"][0]
        return getattr(transformers, name).from_pretrained(lent(path)).eval()
    return _with_weights(
        sizes,
        add_fallback_marks(Encoder.load(lent(path / "tokenizer.json")).specials),
        load_file(lent(path / WEIGHTS)),
    )
