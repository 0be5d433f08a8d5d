"""Export in Hugging Face layout: config.json, safetensors and tokenizer files that `AutoModelForCausalLM` and
`AutoTokenizer` load.

`gristmill.json` beside them says which run, step, corpus and tokenizer the model comes from.
"""

import json
import os
import shutil
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipelines.contracts.config import parse, plain
from pipelines.contracts.errors import ConflictError, UserError
from pipelines.contracts.store import fsync_directory, read_json, write_json
from trainers import checkpoint
from trainers.config import Pretraining
from trainers.models import build_model
from trainers.run import read_config, read_run

FORMAT = "gristmill-export/1"
_NAMED = {
    "bos_token": "<bos>",
    "eos_token": "<eos>",
    "pad_token": "<pad>",
    "unk_token": "<unk>",
    "mask_token": "<mask>",
    "cls_token": "<cls>",
    "sep_token": "<sep>",
}


def export_checkpoint(run: Path, output: Path) -> Path:
    """Export the newest checkpoint of `run` to `output`; returns `output`.

    An earlier export there is replaced; ConflictError where the directory holds anything else.
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
    }
    if output.exists() and any(output.iterdir()):
        if not (output / "gristmill.json").exists():
            raise ConflictError(f"{output}: holds files that are no export; give another --output")
        if read_json(output / "gristmill.json") == {
            **origin,
            "checksum": read_json(output / "gristmill.json")["checksum"],
        }:
            return output
    for left in output.parent.glob(f".{output.name}.*.tmp"):  # by an export that was killed
        shutil.rmtree(left)
    attempt = output.with_name(f".{output.name}.{uuid.uuid4().hex}.tmp")
    attempt.mkdir(parents=True)
    try:
        _silence_progress_bars()
        model = trained_model(run, found)
        model.config.use_cache = True
        model.save_pretrained(attempt)
        _save_tokenizer(run / "tokenizer.json", record["specials"], config.model.positions, attempt)
        write_json(attempt / "gristmill.json", origin)
        if output.exists():
            shutil.rmtree(output)
        os.rename(attempt, output)
        fsync_directory(output.parent)
    except OSError as error:
        raise UserError(f"{output}: the export could not be written ({error})") from error
    finally:
        shutil.rmtree(attempt, ignore_errors=True)
    return output


def trained_model(run: Path, found: checkpoint.Checkpoint) -> Any:
    """The model of a checkpoint, fp32, on the CPU."""
    import torch

    model = build_model(read_config(run).model, read_run(run)["specials"], seed=0)
    weights = checkpoint.read_weights(found)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(weights[name])
    return model.eval()


def _silence_progress_bars() -> None:
    from transformers.utils import logging

    logging.disable_progress_bar()


def _save_tokenizer(source: Path, specials: dict[str, int], positions: int, output: Path) -> None:
    """Tokenizer files: the corpus's tokenizer, with its specials named and `<bos>` put before a text as in training."""
    from transformers import PreTrainedTokenizerFast

    definition = json.loads(source.read_text(encoding="utf-8"))
    definition["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "<bos>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [
            {"SpecialToken": {"id": "<bos>", "type_id": 0}},
            {"Sequence": {"id": "A", "type_id": 0}},
            {"SpecialToken": {"id": "<bos>", "type_id": 0}},
            {"Sequence": {"id": "B", "type_id": 0}},
        ],
        "special_tokens": {"<bos>": {"id": "<bos>", "ids": [specials["<bos>"]], "tokens": ["<bos>"]}},
    }
    file = output / "tokenizer.json"
    file.write_text(json.dumps(definition, ensure_ascii=False), encoding="utf-8")
    named = {role: token for role, token in _NAMED.items() if token in specials}
    others = [token for token in sorted(specials, key=lambda token: specials[token]) if token not in named.values()]
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_file=str(file),
        model_max_length=positions,
        clean_up_tokenization_spaces=False,
        extra_special_tokens=others,
        **named,
    )
    tokenizer.save_pretrained(output)


@dataclass(frozen=True)
class Trained:
    """A trained model ready to use: a `transformers` model, its tokenizer.json, its configuration and where it comes
    from.
    """

    model: Any
    tokenizer: Path
    config: Pretraining
    fingerprints: dict[str, str]


def load_trained(path: Path) -> Trained:
    """The model of an export, or of the newest checkpoint of a run. UserError where `path` is neither."""
    if (path / "gristmill.json").exists():
        from transformers import AutoModelForCausalLM

        _silence_progress_bars()
        origin = read_json(path / "gristmill.json")
        config = parse(Pretraining, origin["config"], str(path / "gristmill.json"))
        model = AutoModelForCausalLM.from_pretrained(path).eval()
        return Trained(model, path / "tokenizer.json", config, origin["fingerprints"])
    read_run(path)
    found = checkpoint.newest(path, print)
    if found is None:
        raise UserError(f"{path}: has no checkpoint yet; let it train until the first one")
    return Trained(trained_model(path, found), path / "tokenizer.json", read_config(path), found.fingerprints)
