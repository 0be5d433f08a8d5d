"""Export in Hugging Face layout: config.json, safetensors and tokenizer files that `AutoModelForCausalLM` (or
`MaskedLM`, `Seq2SeqLM`) and `AutoTokenizer` load.

`gristmill.json` in the same directory records which run, step, corpus and tokenizer the model comes from, and
whether plain `transformers` can use it. A model that `transformers` cannot compute is written so that it
refuses to load it; the commands of this package load it.
"""

import json
import os
import shutil
import uuid
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gristmill.config import plain
from gristmill.errors import ConflictError, CorruptFileError, UserError
from gristmill.storage.disk import LocalPath
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
_WEIGHTS = "model.safetensors"
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

    An earlier export there is replaced; raises ConflictError if the directory holds anything else.
    """
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
    for left in output.parent.glob(f".{output.name}.*.tmp"):  # by an export that was killed
        shutil.rmtree(left)
    if output.exists() and any(output.iterdir()):
        if not (output / "gristmill.json").exists():
            raise ConflictError(f"{output}: holds files that are no export; give another --output")
        if _is_export_of(output, origin):
            return output
    attempt = _aside(output)
    attempt.mkdir(parents=True)
    try:
        _silence_progress_bars()
        _save_model(trained_model(run, found), config.model, record["specials"], attempt)
        _save_tokenizer(verified_copy(run), record["specials"], config, attempt)
        for file in attempt.iterdir():  # what libraries write does not reach the disk by itself
            with open(file, "rb") as written:
                os.fsync(written.fileno())
        files = [asdict(attempt.record(file.name)) for file in sorted(attempt.iterdir())]
        write_json(attempt / "gristmill.json", {**origin, "files": files})
        _replace(output, attempt)
    except OSError as error:
        raise UserError(
            f"{output}: the export could not be written ({error}); mend that and run the same command"
        ) from error
    finally:
        shutil.rmtree(attempt, ignore_errors=True)
    return output


def _aside(output: LocalPath) -> LocalPath:
    """A temporary directory next to `output`. Leftovers are removed by the next export to the same path."""
    return output.with_name(f".{output.name}.{uuid.uuid4().hex}.tmp")


def _replace(output: LocalPath, attempt: LocalPath) -> None:
    """Move a finished export to `output`, replacing an earlier one. `output` never holds a partial export."""
    earlier = _aside(output)
    if output.exists():
        os.rename(output, earlier)
    try:
        os.rename(attempt, output)
    except OSError:
        if earlier.exists():
            os.rename(earlier, output)
        raise
    output.parent.fsync()
    shutil.rmtree(earlier, ignore_errors=True)


def _is_export_of(output: LocalPath, origin: dict[str, Any]) -> bool:
    """Whether `output` is an intact export of this origin."""
    try:
        found = _read_origin(output)
    except CorruptFileError:
        return False
    return {name: value for name, value in found.items() if name not in ("files", "checksum")} == origin


def _read_origin(export: LocalPath) -> dict[str, Any]:
    """Verify every file of an export and return its `gristmill.json`. Raises CorruptFileError for a file that
    differs.
    """
    origin = read_json(export / "gristmill.json", "export again")
    for entry in origin["files"]:
        export.verify(FileRecord(**entry))
    return origin


def trained_model(run: LocalPath, found: checkpoint.Checkpoint) -> Any:
    """The model of a checkpoint, in fp32 on the CPU."""
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
    """What users of plain `transformers` must know about an export."""
    return list(read_json(export / "gristmill.json")["transformers"]["notes"])


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


def _save_model(model: Any, sizes: Model, specials: dict[str, int], output: Path) -> None:
    """Write config.json and the weights. A model that plain `transformers` cannot compute gets a `model_type`
    unknown to it; otherwise it would silently leave out weights and give different results.
    """
    if why_not_stock(sizes) is not None:
        from safetensors.torch import save_file

        save_file({name: weight.detach().contiguous() for name, weight in model.named_parameters()}, output / _WEIGHTS)
        written = {**model.config.to_dict(), "model_type": f"gristmill_{sizes.architecture}"}
        (output / "config.json").write_text(json.dumps(written, indent=2), encoding="utf-8")
        return
    if sizes.tied_stacks:
        untie_stacks(model, sizes.architecture)
    if (publish := MODELS[sizes.architecture].publish) is not None:
        publish(model, specials)
    if sizes.family != "encoder":
        model.config.use_cache = True
    model.save_pretrained(output)


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
    if spaces_lead(Encoder.load(str(source))):
        for token in definition["added_tokens"]:
            token["lstrip"] = token["lstrip"] or token["id"] in filling
    file = output / "tokenizer.json"
    file.write_text(json.dumps(definition, ensure_ascii=False), encoding="utf-8")
    named: dict[str, Any] = {role: written[specials[token]] for role, token in _NAMED.items() if token in specials}
    others = [written[number] for number in sorted(set(specials.values())) if written[number] not in named.values()]
    segments = ["token_type_ids"] if MODELS[config.model.architecture].sentence is not None else []
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_file=str(file),
        model_max_length=config.model.positions,
        clean_up_tokenization_spaces=False,
        extra_special_tokens=others,
        model_input_names=["input_ids", *segments, "attention_mask"],
        padding_side="left" if config.model.family == "decoder" else "right",
        **named,
    )
    tokenizer.save_pretrained(output)


def _template(
    before: str | None, after: str | None, specials: dict[str, int], written: dict[int, str]
) -> dict[str, Any]:
    """The post-processor that puts these specials around a text or a pair of texts, with a single one between
    the two.
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


def load_trained(path: LocalPath) -> Trained:
    """The model of an export, or of the newest checkpoint of a run. UserError where `path` is neither."""
    if (path / "gristmill.json").exists():
        _silence_progress_bars()
        origin = _read_origin(path)
        config = parse_job(origin["config"], str(path / "gristmill.json"))
        return Trained(_exported_model(path, config.model), path / "tokenizer.json", config, origin["fingerprints"])
    read_run(path)
    found = checkpoint.newest(path, print)
    if found is None:
        raise UserError(f"{path}: has no checkpoint yet; let it train until the first one")
    return Trained(trained_model(path, found), verified_copy(path), read_config(path), found.fingerprints)


def _exported_model(path: Path, sizes: Model) -> Any:
    """Load the model of an export with the class named in its config.json."""
    import transformers
    from safetensors.torch import load_file

    if why_not_stock(sizes) is None:
        name = json.loads((path / "config.json").read_text(encoding="utf-8"))["architectures"][0]
        return getattr(transformers, name).from_pretrained(path).eval()
    return _with_weights(
        sizes, add_fallback_marks(Encoder.load(str(path / "tokenizer.json")).specials), load_file(path / _WEIGHTS)
    )
