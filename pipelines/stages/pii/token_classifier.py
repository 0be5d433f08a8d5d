"""Find names with a Hugging Face token classifier in a local directory. Nothing is downloaded, and no code or
pickle in the directory is run.
"""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gristmill.errors import UserError
from gristmill.libraries.model_positions import most_tokens

_TOKENS = 512  # tokens of a window, at most; neighbours share a quarter
_SHORTEST = 32  # tokens of the shortest batch
_ROWS = 16  # windows per batch
_LABELS = {
    "PERSON": ("PER", "PERS", "PERSON"),
    "LOCATION": ("LOC", "LOCATION", "GPE", "FAC", "FACILITY"),
    "ORGANIZATION": ("ORG", "ORGANIZATION", "ORGANISATION"),
    "NRP": ("NRP", "NORP"),
    "DATE_TIME": ("DATE", "TIME", "DATE_TIME"),
}
"""The labels of each entity, without B- and I-: the labels of CoNLL-2003 and OntoNotes 5 that Presidio maps
to the entity for spaCy, and the full spellings of these labels. FAC (buildings, airports) counts as a
location too.
"""
_OTHER = (
    *("O", "MISC", "CARDINAL", "EVENT", "LANGUAGE", "LAW", "MONEY", "ORDINAL", "PERCENT", "PRODUCT", "QUANTITY"),
    "WORK_OF_ART",
)
"""Labels of the same data sets that are not personal data."""
_ENTITY = {label: entity for entity, labels in _LABELS.items() for label in labels}


class TokenClassifier:
    """A token classifier, run over overlapping windows, so that every character of a text is read.

    Windows and spans are those of transformers' TokenClassificationPipeline with `stride`. Its
    `aggregation_strategy` is "first" if the tokenizer marks pieces that continue a word, as WordPiece does,
    and otherwise "simple", because "first" would take a line of Chinese for one word. Batches have fixed
    shapes, so that the finds in a text do not depend on the other texts of the batch.
    """

    def __init__(self, directory: str, entities: Sequence[str], stage: str = "pii") -> None:
        """Load the model on the CPU. Raises UserError if the model does not load or lacks weights, or if its
        tokenizer is not a fast one or has no padding token.
        """
        import torch
        import transformers

        where = f"{stage}: ner_model {directory!r}"
        try:
            tokenizer = transformers.AutoTokenizer.from_pretrained(directory, local_files_only=True)
            model, loading = transformers.AutoModelForTokenClassification.from_pretrained(
                directory, local_files_only=True, use_safetensors=True, dtype=torch.float32, output_loading_info=True
            )
        except Exception as error:  # libraries raise their own, and Rust's tokenizers a bare Exception
            raise UserError(f"{where} cannot be loaded ({(str(error).splitlines() or [''])[0]})") from None
        if not tokenizer.is_fast:
            raise UserError(f"{where}: its tokenizer is not a fast one, and has no positions of tokens in the text")
        if tokenizer.pad_token_id is None:
            raise UserError(
                f"{where}: its tokenizer has no token for padding; name one in tokenizer_config.json (pad_token)"
            )
        # The library draws weights that the file lacks at random.
        if missing := sorted(loading["missing_keys"]):
            raise UserError(
                f"{where}: model.safetensors lacks {len(missing)} weights of the model, such as {missing[0]}"
            )
        tokenizer.model_max_length = min(_TOKENS, tokenizer.model_max_length, most_tokens(model.config) or _TOKENS)
        marked = getattr(tokenizer.backend_tokenizer.model, "continuing_subword_prefix", None)
        self.pipeline = transformers.pipeline(
            "token-classification",
            model=model.eval(),
            tokenizer=tokenizer,
            aggregation_strategy="first" if marked else "simple",
            stride=tokenizer.model_max_length // 4,
            device="cpu",
        )
        self._entities = frozenset(entities)

    def read(self, texts: Sequence[str]) -> list[list[tuple[int, int, str, float]]]:
        """Return the names in each text as (start, end, entity, score), for the entities given to the
        constructor. Offsets are in code points, and the score is a probability.
        """
        windows = [list(self.pipeline.preprocess(text, **self.pipeline._preprocess_params)) for text in texts]
        self._classify([window for its in windows for window in its])
        found = [self.pipeline.postprocess(its, **self.pipeline._postprocess_params) for its in windows]
        named = [
            [(span["start"], span["end"], _entity(span["entity_group"]), float(span["score"])) for span in its]
            for its in found
        ]
        return [
            [name for name in names if name[2] in self._entities and text[name[0] : name[1]].strip()]
            for text, names in zip(texts, named, strict=True)
        ]

    def _classify(self, windows: Sequence[dict[str, Any]]) -> None:
        """Run the model on each window and store its output in the window as `logits` (1, tokens, labels).
        Windows of similar length are batched.
        """
        import torch

        groups: dict[int, list[dict[str, Any]]] = {}
        for window in windows:
            groups.setdefault(self._length(window), []).append(window)
        with _on_one_thread(), torch.inference_mode():
            for length, group in groups.items():
                for first in range(0, len(group), _ROWS):
                    some = group[first : first + _ROWS]
                    for window, logits in zip(some, self._run(some, length), strict=False):
                        window["logits"] = logits[None, : window["input_ids"].shape[1]]

    def _length(self, window: dict[str, Any]) -> int:
        longest = int(self.pipeline.tokenizer.model_max_length)
        return min(longest, max(_SHORTEST, 1 << (window["input_ids"].shape[1] - 1).bit_length()))

    def _run(self, windows: Sequence[dict[str, Any]], length: int) -> Any:
        """Return the logits (16, length, labels) of at most 16 windows. Rows after the last window are
        padding.
        """
        import torch

        tokenizer = self.pipeline.tokenizer
        inputs = {
            name: torch.zeros(_ROWS, length, dtype=torch.int64)
            for name in tokenizer.model_input_names
            if name in windows[0]
        }
        inputs["input_ids"] += tokenizer.pad_token_id
        inputs["attention_mask"][:, 0] = 1  # a row of padding only would divide by zero
        for row, window in enumerate(windows):
            for name, values in inputs.items():
                values[row, : window[name].shape[1]] = window[name][0]
        return self.pipeline.model(**inputs).logits


@contextmanager
def _on_one_thread() -> Iterator[None]:
    """Run PyTorch on one thread inside the block: a task has one core, and more threads would change the
    order of additions.
    """
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def check_token_classifier(directory: Path, entities: Sequence[str]) -> None:
    """Raise ValueError if a directory lacks config.json, model.safetensors or tokenizer.json, or if its model
    has an unknown label or no label for any of the entities.
    """
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        if (directory / name).is_file():
            continue
        hint = ""
        if name == "model.safetensors" and (directory / "pytorch_model.bin").is_file():
            hint = "; pytorch_model.bin is a pickle, which is not read: save the model as safetensors"
        if name == "tokenizer.json":
            hint = (
                "; save it with transformers' fast tokenizer, AutoTokenizer.from_pretrained(DIR).save_pretrained(DIR)"
            )
        raise ValueError(
            f"ner_model: {directory} has no {name}; expected a directory that spaCy saved, with config.cfg, or a token "
            f"classifier of Hugging Face, with config.json, model.safetensors and tokenizer.json{hint}"
        )
    found = set(map(_entity, _read_labels(directory)))
    if not found & {*entities}:
        raise ValueError(
            f"ner_model: {directory} has labels of {', '.join(sorted(found - {''})) or 'no entity'}, and none of these is "
            "searched for"
        )


def _read_labels(directory: Path) -> list[str]:
    try:
        config = json.loads((directory / "config.json").read_bytes())
        labels = list(config["id2label"].values())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        labels = []
    names = sorted({_plain(label) for label in labels if isinstance(label, str)})
    if not names:
        raise ValueError(f"ner_model: {directory}: config.json has no labels (id2label)")
    for name in names:
        if name not in _ENTITY and name not in _OTHER:
            raise ValueError(
                f"ner_model: {directory}: config.json has the label {name!r}; expected {', '.join(_ENTITY)}, with B- and I- or "
                f"without, or labels that are ignored: {', '.join(_OTHER)}"
            )
    return names


def _plain(label: str) -> str:
    return label.upper().removeprefix("B-").removeprefix("I-")


def _entity(label: str) -> str:
    return _ENTITY.get(_plain(label), "")
