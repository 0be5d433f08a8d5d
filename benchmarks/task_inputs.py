"""Benchmark the inputs of tasks, from texts to tokens and from tokens to rows of batches, against
`transformers`.

    python -m benchmarks.task_inputs [TASK ...] [--data DIR] [--batch 32] [--vocab-size 8000]

A byte-level BPE, a WordPiece and a unigram tokenizer are trained on the texts of each task. The script prints
MB/s from texts to inputs with an empty cache, against the same tokenizer in `PreTrainedTokenizerFast`. Then
it prints the examples per second and the share of padding over an epoch of batches, against
`DataCollatorWithPadding`. Rates are by processor time. The ids are compared with the peer's.
"""

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ |= {"RAYON_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": "1"}

import numpy as np
import xxhash
from tokenizers import Tokenizer
from tokenizers.processors import TemplateProcessing
from transformers import DataCollatorWithPadding, PreTrainedTokenizerFast

from gristmill.storage.disk import LocalPath
from tokenizer.kinds.train import train
from tokenizer.vocabulary.specials import SPECIAL_IDS
from trainers.config.architecture import Model, fill
from trainers.config.finetuning import Mixing
from trainers.data.examples.encoded_texts import TextEncoder
from trainers.data.examples.make_inputs import InputMaker
from trainers.data.examples.task_data import TaskData, order_of_tasks
from trainers.data.examples.task_inputs import TaskInputs
from trainers.data.examples.text_format import text_format
from trainers.rows.batch import PADDING
from trainers.tasks.examples import Examples
from trainers.tasks.load_task import load_task
from trainers.tasks.read_examples import read_examples

LENGTH = 128


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", nargs="*", default=["sst2", "mnli"], metavar="TASK")
    parser.add_argument("--data", default=os.environ.get("GRISTMILL_DATA", ".") + "/tasks")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--vocab-size", type=int, default=8000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["GRISTMILL_CACHE"] = folder
        for name in options.tasks:
            examples = read_examples(load_task(name), "train", LocalPath(options.data))
            values = [texts.to_pylist() for texts in examples.texts]
            for kind in ("byte_bpe", "wordpiece", "unigram"):
                file = Path(folder) / f"{name}-{kind}.json"
                file.write_bytes(train(kind, [text for texts in values for text in texts], options.vocab_size))
                compare(f"{name} {kind}", file, examples, values, options.batch)


def compare(title: str, file: Path, examples: Examples, values: list[list[str]], size: int) -> None:
    model = fill(
        Model("bert", layers=1, width=64, heads=1, positions=LENGTH), Tokenizer.from_file(str(file)).get_vocab_size()
    )
    form = text_format(model, SPECIAL_IDS)

    def make(path: Path) -> TaskInputs:
        encoder = TextEncoder(str(path), xxhash.xxh3_128_hexdigest(os.urandom(16)))
        encoder.encoder  # noqa: B018 - loads it
        return InputMaker(encoder, form, LENGTH, 32).make(examples)

    fast = Tokenizer.from_file(str(file))
    fast.post_processor = TemplateProcessing(
        single="<cls> $A <sep>", pair="<cls> $A <sep> $B:1 <sep>:1", special_tokens=[("<cls>", 5), ("<sep>", 6)]
    )
    peer = PreTrainedTokenizerFast(tokenizer_object=fast, pad_token="<pad>", cls_token="<cls>", sep_token="<sep>")
    rules = {"truncation": True, "max_length": LENGTH, "return_token_type_ids": True}
    peer(values[0][:10])
    make(file)  # compiles the kernels, and warms the libraries
    ours, inputs = timed(lambda: make(file))
    theirs, features = timed(lambda: peer(*values, **rules))
    numbers = np.arange(len(inputs))
    rendered = inputs.render(numbers)
    same = rendered.ids.tolist() == [token for ids in features["input_ids"] for token in ids]
    megabytes = inputs.text_bytes / 1e6
    print(
        f"{title}: {len(inputs):,} inputs of {inputs.lengths.mean():.1f} tokens; encode {megabytes / ours:.1f} MB/s, "
        f"transformers {megabytes / theirs:.1f} ({theirs / ours:.1f} x), ids {'equal' if same else 'DIFFER'}"
    )
    data = TaskData((inputs,), order_of_tasks([inputs], Mixing(), 0, "benchmark"), LENGTH)
    batches = len(inputs) // size
    ours, padding = timed(lambda: epoch(data, batches, size))
    order = np.random.default_rng(0).permutation(len(inputs))
    rows = [{name: features[name][i] for name in features} for i in order]
    theirs, waste = timed(lambda: padded_epoch(peer, rows, size, batches))
    print(
        f"    rows {batches * size / ours:,.0f} examples/s, {padding:.1%} padding; collator {batches * size / theirs:,.0f}, "
        f"{waste:.1%} padding ({theirs / ours:.1f} x)"
    )


def timed(run: Callable[[], Any]) -> tuple[float, Any]:
    start = time.process_time()
    result = run()
    return time.process_time() - start, result


def epoch(data: TaskData, batches: int, size: int) -> float:
    """Make the batches of an epoch; return the share of padding."""
    positions = padding = 0
    for number in range(batches):
        for batch in data.split(data.order.take(number * size, size), size, 0, 1):
            positions += batch.segments.size
            padding += int((batch.segments == PADDING).sum())
    return padding / positions


def padded_epoch(peer: Any, rows: list[dict[str, list[int]]], size: int, batches: int) -> float:
    collate = DataCollatorWithPadding(peer)
    positions = read = 0
    for number in range(batches):
        batch = collate(rows[number * size : (number + 1) * size])
        positions += batch["attention_mask"].numel()
        read += int(batch["attention_mask"].sum())
    return 1 - read / positions


if __name__ == "__main__":
    main()
