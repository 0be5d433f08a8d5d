"""Export in Hugging Face layout: config.json, safetensors and tokenizer files that `AutoModelForCausalLM` (or
`MaskedLM`, `Seq2SeqLM`) and `AutoTokenizer` load.

`gristmill.json` in the same directory records which run, step, corpus and tokenizer the model comes from, and
whether plain `transformers` can use it. A model that `transformers` cannot compute is written so that it
refuses to load it; the commands of this package load it.
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
from gristmill.storage.location import FileRecord
from gristmill.storage.store import read_json, write_json
from tokenizer.encode import Encoder
from tokenizer.vocabulary.specials import MASK, SENTINELS, add_fallback_marks
from trainers.config.architecture import Model
from trainers.config.job import Job
from trainers.config.job_kinds import parse_job
from trainers.inference.prompt import spaces_lead
from trainers.models import MODELS, build_model, untie_stacks, why_not_stock
from trainers.runs import checkpoint
from trainers.runs.run import read_config, read_run, verified_copy

FORMAT = "gristmill-export/1"
_ORIGIN, _WEIGHTS, _INDEX = "gristmill.json", "model.safetensors", "model.safetensors.index.json"
_TRIES = 5  # each fails only where another process exports to the same directory, or the run trains
_NAMED = {
    "bos_token": "<bos>",
    "eos_token": "<eos>",
    "pad_token": "<pad>",
    "unk_token": "<unk>",
    "mask_token": "<mask>",
    "cls_token": "<cls>",
    "sep_token": "<sep>",
}


def export_checkpoint(run: LocalPath, output: LocalPath) -> LocalPath:
    """Export the newest checkpoint of `run` to `output`; returns `output`.

    An earlier export there is replaced; raises ConflictError if the directory holds anything else. Exports to
    the same directory take turns by the lease of the neighbouring directory `.NAME`, in which each is also
    prepared. A process that has lost the lease may notice that its attempt was removed, or that another
    export was published; it then checks again.
    """
    from safetensors import SafetensorError

    work = output.with_name(f".{output.name}")
    try:
        with lock(work, "exporting", lambda line: print(line, flush=True)):
            for left in work.glob("*.tmp"):
                _remove(left)
            for _ in range(_TRIES):
                if _export(run, output, work):
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


def _export(run: LocalPath, output: LocalPath, work: LocalPath) -> bool:
    """Export, unless that is done; False where another process removed what this one reads or writes."""
    earlier = _origin_of(output)  # read before the checkpoints, so it is of no later step than the newest of them
    record, config = read_run(run), read_config(run)
    found = checkpoint.newest(run, print)
    if found is None:
        raise UserError(f"{run}: has no checkpoint yet, there is nothing to export")
    origin = {
        "format": FORMAT,
        "run": record["name"],
        "step": found.step,
        "tokens": found.tokens,
        "fingerprints": found.fingerprints,
        "checkpoint": found.checksum,
        "config": plain(config),
        "transformers": {"loads": why_not_stock(config.model) is None, "notes": _notes(config)},
    }
    if output.exists() and any(output.iterdir()):
        if not (output / _ORIGIN).exists():
            raise ConflictError(f"{output}: holds files that are no export; give another --output")
        if _is_export_of(output, origin):
            return True
    attempt = _aside(work)
    attempt.mkdir(parents=True)
    mark = attempt / ".mark"  # missing once the attempt was removed, though libraries make its directory again
    mark.touch()
    try:
        _silence_progress_bars()
        _save_model(trained_model(run, found), config.model, record["specials"], attempt)
        _save_tokenizer(verified_copy(run), record["specials"], config, attempt)
        names = sorted(file.name for file in attempt.iterdir() if file != mark)
        for name in names:  # what libraries write does not reach the disk by itself
            with host().open(str(attempt / name)) as written:
                host().fsync(written)
        files = [asdict(attempt.record(name)) for name in names]
        write_json(attempt / _ORIGIN, {**origin, "files": files})
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
        return read_json(export / _ORIGIN)
    except (FileNotFoundError, NotADirectoryError, CorruptFileError):
        return None


def _is_export_of(output: LocalPath, origin: dict[str, Any]) -> bool:
    """Whether `output` is an intact export of this origin."""
    try:
        found = _read_origin(output)
    except CorruptFileError:
        return False
    return {name: value for name, value in found.items() if name not in ("files", "checksum")} == origin


def _read_origin(export: LocalPath) -> dict[str, Any]:
    """Verify every file of an export and return its `gristmill.json`. Raises CorruptFileError for a file that
    differs, or that every export has and this one lacks.
    """
    origin = read_json(export / _ORIGIN, "export again")
    names = {entry["path"] for entry in origin["files"]}
    for entry in origin["files"]:
        export.verify(FileRecord(**entry))
    required = {"config.json", "tokenizer.json", "tokenizer_config.json"}
    if _INDEX in names:
        required.update(json.loads((export / _INDEX).read_text(encoding="utf-8"))["weight_map"].values())
    else:
        required.add(_WEIGHTS)
    if missing := sorted(required - names):
        raise CorruptFileError(f"{export}: has no {missing[0]}; export again")
    return origin


def trained_model(run: LocalPath, found: checkpoint.Checkpoint) -> Any:
    """Return the model of a checkpoint, in fp32 on the CPU."""
    return _with_weights(read_config(run).model, read_run(run)["specials"], checkpoint.read_weights(found))


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
    return list(read_json(export / _ORIGIN)["transformers"]["notes"])


def _notes(config: Job) -> list[str]:
    notes = []
    if reason := why_not_stock(config.model):
        notes.append(f"transformers does not load it: {reason}; `python -m trainers generate` and `evaluate` do")
    if config.model.family == "decoder" and config.objective.sees_prefix:
        notes.append(
            "trained with a prefix that sees itself in both directions; transformers attends causally, with another loss; "
            "`python -m trainers generate` and `evaluate` attend as in training"
        )
    return notes


def _save_model(model: Any, sizes: Model, specials: dict[str, int], output: LocalPath) -> None:
    """Write config.json and the weights. A model that plain `transformers` cannot compute gets a `model_type`
    unknown to it; otherwise it would silently leave out weights and give different results.
    """
    if why_not_stock(sizes) is not None:
        from safetensors.torch import save_file

        weights = {name: weight.detach().contiguous() for name, weight in model.named_parameters()}
        host().deliver(str(output / _WEIGHTS), partial(save_file, weights))
        written = {**model.config.to_dict(), "model_type": f"gristmill_{sizes.architecture}"}
        (output / "config.json").write_text(json.dumps(written, indent=2), encoding="utf-8")
        return
    if sizes.tied_stacks:
        untie_stacks(model, sizes.architecture)
    if (publish := MODELS[sizes.architecture].publish) is not None:
        publish(model, specials)
    if sizes.family != "encoder":
        model.config.use_cache = True
    host().deliver(str(output), model.save_pretrained)


def _save_tokenizer(source: Path, specials: dict[str, int], config: Job, output: LocalPath) -> None:
    """Write the tokenizer files: the corpus's tokenizer with the roles of its specials, which it puts around
    a text as in training.
    """
    from transformers import PreTrainedTokenizerFast

    definition = json.loads(source.read_text(encoding="utf-8"))
    written = {token["id"]: token["content"] for token in definition["added_tokens"]}
    filling = {specials[name] for name in (MASK, *SENTINELS) if name in specials}
    frame = config.objective.text_frame(config.model.family)
    definition["post_processor"] = _template(frame.before, frame.after, specials, written)
    if spaces_lead(Encoder.load(lent(source))):
        for token in definition["added_tokens"]:
            token["lstrip"] = token["lstrip"] or token["id"] in filling
    file = output / "tokenizer.json"
    file.write_text(json.dumps(definition, ensure_ascii=False), encoding="utf-8")
    named: dict[str, Any] = {role: written[specials[token]] for role, token in _NAMED.items() if token in specials}
    others = [written[number] for number in sorted(set(specials.values())) if written[number] not in named.values()]
    segments = ["token_type_ids"] if MODELS[config.model.architecture].sentence is not None else []
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_file=lent(file),
        model_max_length=config.model.positions,
        clean_up_tokenization_spaces=False,
        extra_special_tokens=others,
        model_input_names=["input_ids", *segments, "attention_mask"],
        padding_side="left" if config.model.family == "decoder" else "right",
        **named,
    )
    host().deliver(str(output), tokenizer.save_pretrained)


def _template(
    before: str | None, after: str | None, specials: dict[str, int], written: dict[int, str]
) -> dict[str, Any]:
    """Return the post-processor that puts these specials around a text or a pair of texts, with a single one
    between the two.
    """

    def mark(special: str | None, kind: int) -> list[dict[str, Any]]:
        return [{"SpecialToken": {"id": written[specials[special]], "type_id": kind}}] if special else []

    def text(name: str, kind: int) -> list[dict[str, Any]]:
        return [{"Sequence": {"id": name, "type_id": kind}}]

    single = [*mark(before, 0), *text("A", 0), *mark(after, 0)]
    second = [*([] if after else mark(before, 0)), *text("B", int(after is not None)), *mark(after, 1)]
    used = {written[specials[special]]: specials[special] for special in (before, after) if special}
    return {
        "type": "TemplateProcessing",
        "single": single,
        "pair": [*single, *second],
        "special_tokens": {token: {"id": token, "ids": [number], "tokens": [token]} for token, number in used.items()},
    }


@dataclass(frozen=True)
class Trained:
    """A trained model ready to use: a `transformers` model, its tokenizer.json, its configuration and the
    fingerprints of its origin.
    """

    model: Any
    tokenizer: LocalPath
    config: Job
    fingerprints: dict[str, str]


def read_export(path: LocalPath) -> tuple[dict[str, Any], Job]:
    """(what `gristmill.json` of a verified export says, the configuration of its run)."""
    origin = _read_origin(path)
    return origin, parse_job(origin["config"], str(path / _ORIGIN))


def load_trained(path: LocalPath) -> Trained:
    """Load the model of an export, or of the newest checkpoint of a run. Raises UserError if `path` is
    neither.
    """
    if (path / _ORIGIN).exists():
        _silence_progress_bars()
        origin, config = read_export(path)
        return Trained(_exported_model(path, config.model), path / "tokenizer.json", config, origin["fingerprints"])
    record = read_run(path)
    newest = checkpoint.read_newest(path, print)
    if newest is None:
        raise UserError(f"{path}: has no checkpoint yet; let it train until the first one")
    (found, weights), config = newest, read_config(path)
    return Trained(
        _with_weights(config.model, record["specials"], weights), verified_copy(path), config, found.fingerprints
    )


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
        load_file(lent(path / _WEIGHTS)),
    )
