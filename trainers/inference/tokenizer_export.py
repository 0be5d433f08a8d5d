"""Write the tokenizer files of an export."""

import json
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from gristmill.host import host, lent
from gristmill.storage.disk import LocalPath
from tokenizer.encode import Encoder
from tokenizer.vocabulary.specials import MASK, SENTINELS
from trainers.config.finetuning import Finetuning
from trainers.config.job import Job
from trainers.data.examples.text_format import text_format
from trainers.inference.prompt import spaces_lead

_NAMED = {
    "bos_token": "<bos>",
    "eos_token": "<eos>",
    "pad_token": "<pad>",
    "unk_token": "<unk>",
    "mask_token": "<mask>",
    "cls_token": "<cls>",
    "sep_token": "<sep>",
}


@dataclass(frozen=True)
class _Marks:
    """The ids of the special tokens before, between and after a text or a pair of texts. `second` is the
    token type of the second text.
    """

    before: tuple[int, ...]
    between: tuple[int, ...]
    after: tuple[int, ...]
    second: int


def save_tokenizer(source: Path, specials: dict[str, int], config: Job, output: LocalPath) -> None:
    """Write the tokenizer files of an export to `output`, given the `tokenizer.json` at `source`. The
    exported tokenizer puts the same special tokens around a text as in training. A model that reads
    characters also gets the files of CANINE's tokenizer.
    """
    from transformers import PreTrainedTokenizerFast

    definition = json.loads(source.read_text(encoding="utf-8"))
    written = {token["id"]: token["content"] for token in definition["added_tokens"]}
    filling = {specials[name] for name in (MASK, *SENTINELS) if name in specials}
    marks = _marks(config, specials)
    definition["post_processor"] = _template(marks, written)
    if spaces_lead(Encoder.load(lent(source))):
        for token in definition["added_tokens"]:
            token["lstrip"] = token["lstrip"] or token["id"] in filling
    file = output / "tokenizer.json"
    file.write_text(json.dumps(definition, ensure_ascii=False), encoding="utf-8")
    if config.model.traits.characters:  # plain `transformers` reads code points, our commands the tokens of the file
        host().deliver(str(output), _code_points(config.model.positions).save_pretrained)
        return
    named: dict[str, Any] = {role: written[specials[token]] for role, token in _NAMED.items() if token in specials}
    others = [written[number] for number in sorted(set(specials.values())) if written[number] not in named.values()]
    writes = not isinstance(config, Finetuning) or config.writes_text
    longest = config.encoding.max_length or 0 if isinstance(config, Finetuning) else 0
    segments = ["token_type_ids"] if config.model.traits.token_types else []
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_file=lent(file),
        model_max_length=max(longest, config.model.positions),
        clean_up_tokenization_spaces=False,
        extra_special_tokens=others,
        model_input_names=["input_ids", *segments, "attention_mask"],
        padding_side="left" if writes and config.model.family == "decoder" else "right",
        **named,
    )
    host().deliver(str(output), tokenizer.save_pretrained)


@lru_cache(maxsize=4)
def _code_points(positions: int) -> Any:
    """Return CANINE's tokenizer, cached because `transformers` takes a second to make it."""
    from transformers import CanineTokenizer

    return CanineTokenizer(model_max_length=positions)


def _marks(config: Job, specials: dict[str, int]) -> _Marks:
    if isinstance(config, Finetuning):
        form = text_format(config.model, specials, config.writes_text)
        return _Marks(form.before, form.between, form.after, int(form.token_types))
    frame = config.objective.text_frame(config.model.family)
    before, after = (() if name is None else (specials[name],) for name in (frame.before, frame.after))
    return _Marks(before, after or before, after, int(frame.after is not None))


def _template(marks: _Marks, written: dict[int, str]) -> dict[str, Any]:
    def put(ids: tuple[int, ...], kind: int) -> list[dict[str, Any]]:
        return [{"SpecialToken": {"id": written[number], "type_id": kind}} for number in ids]

    def text(name: str, kind: int) -> list[dict[str, Any]]:
        return [{"Sequence": {"id": name, "type_id": kind}}]

    first = [*put(marks.before, 0), *text("A", 0)]
    second = [*text("B", marks.second), *put(marks.after, marks.second)]
    used = {written[number]: number for ids in (marks.before, marks.between, marks.after) for number in ids}
    return {
        "type": "TemplateProcessing",
        "single": [*first, *put(marks.after, 0)],
        "pair": [*first, *put(marks.between, 0), *second],
        "special_tokens": {token: {"id": token, "ids": [number], "tokens": [token]} for token, number in used.items()},
    }
