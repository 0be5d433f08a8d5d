"""Benchmark masking: tokens per second, against Hugging Face's collator for masked language modelling.

    python -m benchmarks.masking [--rows 32] [--sequence-length 512]

Both sides mask 15 % of the same rows of four documents each, 80 / 10 / 10, on one thread. Our objective
counts targets per document, draws from the seed and the sample's number, and yields numpy arrays that torch
can use without a copy. The collator gets tensors and a mask of special tokens. Nothing needs padding here,
but checking for it takes most of the collator's time, so its masking of prepared tensors is also timed alone.
The collator applies 80 / 10 / 10 to single tokens, but replaces whole words only by `[MASK]`. It has no span
masking.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from gristmill.storage.disk import LocalPath
from trainers.objectives.masked import Masked
from trainers.objectives.shared.context import Context
from trainers.objectives.shared.masking_kernels import BEGINS
from trainers.rows.batch import IGNORED, Batch

VOCABULARY, DOCUMENTS = 30_522, 4
SPECIALS = {"<pad>": 0, "<unk>": 1, "<cls>": 2, "<sep>": 3, "<mask>": 4}


def rows_of(rows: int, length: int) -> Batch:
    rng = np.random.default_rng(0)
    size = length // DOCUMENTS
    inputs = rng.integers(len(SPECIALS), VOCABULARY, (rows, length))
    inputs[:, ::size], inputs[:, size - 1 :: size] = SPECIALS["<cls>"], SPECIALS["<sep>"]
    segments = np.broadcast_to(np.arange(length) // size, inputs.shape).copy()
    numbers, nothing = np.arange(rows), np.zeros(rows, np.int64)
    positions = np.broadcast_to(np.arange(length) % size, inputs.shape).copy()
    return Batch(inputs, np.full_like(inputs, IGNORED), positions, segments, nothing, numbers, numbers, nothing)


def tokenizer_of(directory: Path) -> Any:
    """Return a WordPiece tokenizer with VOCABULARY tokens, two thirds of which begin a word."""
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    names = [f"[{name.strip('<>').upper()}]" for name in SPECIALS]
    words = [f"{'##' if number % 3 == 0 else ''}w{number}" for number in range(len(names), VOCABULARY)]
    vocabulary = {token: number for number, token in enumerate([*names, *words])}
    path = directory / "tokenizer.json"
    Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]")).save(str(path))
    pad, unk, cls, sep, mask = names
    marks = {"pad_token": pad, "unk_token": unk, "cls_token": cls, "sep_token": sep, "mask_token": mask}
    return PreTrainedTokenizerFast(tokenizer_file=str(path), **marks)


def peer(tokenizer: Any, batch: Batch, words: bool) -> Callable[[], object]:
    import torch
    from transformers import DataCollatorForLanguageModeling

    collator = DataCollatorForLanguageModeling(tokenizer, whole_word_mask=words)
    special = np.isin(batch.inputs, list(SPECIALS.values())).astype(np.int64)
    offsets = None
    if words:
        # The collator finds words by offsets: a token continues the word if it begins where the previous one
        # ends.
        begins = (batch.inputs % 3 != 0) | (special == 1)
        starts = np.cumsum(np.where(begins, 2, 1), axis=1)
        offsets = torch.from_numpy(np.stack([starts, starts + 1], axis=2))

    def collate() -> object:
        rows = []
        for number in range(len(batch.inputs)):
            row = {"input_ids": torch.from_numpy(batch.inputs[number])}
            row["special_tokens_mask"] = torch.from_numpy(special[number])
            if offsets is not None:
                row["offset_mapping"] = offsets[number]
            rows.append(row)
        return collator(rows)

    return collate


def bare_peer(tokenizer: Any, batch: Batch) -> Callable[[], object]:
    import torch
    from transformers import DataCollatorForLanguageModeling

    collator = DataCollatorForLanguageModeling(tokenizer)
    inputs = torch.from_numpy(batch.inputs)
    special = torch.from_numpy(np.isin(batch.inputs, list(SPECIALS.values())))
    return lambda: collator.torch_mask_tokens(inputs.clone(), special_tokens_mask=special)


def speed(run: Callable[[], object], tokens: int, seconds: float = 2.0) -> float:
    """Return the best of three measurements, in millions of tokens per second."""
    run()
    best = 0.0
    for _ in range(3):
        began, count = time.perf_counter(), 0
        while time.perf_counter() - began < seconds / 3 or count == 0:
            run()
            count += 1
        best = max(best, count * tokens / (time.perf_counter() - began) / 1e6)
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=32)
    parser.add_argument("--sequence-length", type=int, default=512)
    arguments = parser.parse_args()
    import torch

    torch.set_num_threads(1)
    batch = rows_of(arguments.rows, arguments.sequence_length)
    marks = np.where(np.arange(VOCABULARY) % 3 != 0, BEGINS, 0).astype(np.uint8)
    context = Context(0, SPECIALS, VOCABULARY, "encoder", arguments.sequence_length, marks)
    found: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as directory:
        tokenizer = tokenizer_of(LocalPath(directory))
        for unit in ("tokens", "words", "spans"):
            objective = Masked(unit=unit)
            found[f"ours, {unit}"] = speed(lambda o=objective: o.apply(batch, context), batch.inputs.size)
            if unit != "spans":
                found[f"transformers, {unit}"] = speed(peer(tokenizer, batch, unit == "words"), batch.inputs.size)
        found["transformers, tokens, masking alone"] = speed(bare_peer(tokenizer, batch), batch.inputs.size)
    for name, value in found.items():
        print(f"{name:36} {value:8.2f} M tokens/s")
    for peers in ("tokens", "tokens, masking alone", "words"):
        ratio = found[f"ours, {peers.partition(',')[0]}"] / found[f"transformers, {peers}"]
        print(f"ratio to transformers, {peers:22} {ratio:6.1f}")
    print(json.dumps({"million_tokens_per_second": found}))


if __name__ == "__main__":
    main()
