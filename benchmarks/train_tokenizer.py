"""Benchmark byte-level BPE training: speed against gigatoken's trainer on the same text, and the choice of
pattern.

    python -m benchmarks.train_tokenizer [FILE ...] [--megabytes 20] [--vocab-size 16384]

For each of our patterns, the script prints the seconds of training and the bytes per token of held-out
documents (every second document of each file). For GPT-2's pattern, the only one that gigatoken trains with,
it also prints gigatoken's seconds and whether the merges are identical.
"""

import argparse
import os
import platform
import tempfile
import time
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import gigatoken
import pyarrow as pa

from benchmarks.encode import prose_files, taken
from tokenizer.encode import Encoder
from tokenizer.kinds.byte_bpe import PATTERNS, train_byte_bpe
from tokenizer.vocabulary.specials import SPECIALS

MARK = b"\0document ends\0"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", metavar="FILE")
    parser.add_argument("--megabytes", type=float, default=20, help="to train on; as much again is held out")
    parser.add_argument("--vocab-size", type=int, default=16384)
    options = parser.parse_args()
    files = options.files or prose_files()
    share = 2 * options.megabytes * 1e6 / len(files)
    texts = {file: list(taken([file], share)) for file in files}
    training = [text for some in texts.values() for text in some[::2]]
    print(f"training on {sum(len(text.encode()) for text in training) / 1e6:.1f} MB, {options.vocab_size:,} tokens")
    contents = {}
    for pattern in PATTERNS:
        start = time.perf_counter()
        contents[pattern] = train_byte_bpe(training, options.vocab_size, pattern=pattern)
        print(f"tokenizers, {pattern} pattern: {time.perf_counter() - start:.2f} s")
    beside_gigatoken(training, options.vocab_size, contents["gpt2"])
    held_out = {file: some[1::2] for file, some in texts.items() if len(some) > 1}
    for pattern, content in contents.items():
        measured = {Path(file).name.split(".")[0]: bytes_per_token(content, some) for file, some in held_out.items()}
        print(f"bytes per token, {pattern}:", ", ".join(f"{name} {value:.3f}" for name, value in measured.items()))
    print(f"gigatoken {version('gigatoken')}, tokenizers {version('tokenizers')}, Python {platform.python_version()}")
    print(f"{os.cpu_count()} cores, {platform.machine()}, {datetime.now(UTC):%Y-%m-%d}")


def beside_gigatoken(training: list[str], vocab_size: int, ours: bytes) -> None:
    start = time.perf_counter()
    data = MARK.join(text.encode() for text in training)
    _, merges = gigatoken.train_bpe(data, vocab_size, list(SPECIALS), "huggingface", MARK)
    seconds = time.perf_counter() - start
    same = gigatoken.Tokenizer.from_json(ours).merges == merges
    print(f"gigatoken, gpt2 pattern: {seconds:.2f} s; merges identical: {'yes' if same else 'NO'}")


def bytes_per_token(content: bytes, texts: list[str]) -> float:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "tokenizer.json"
        file.write_bytes(content)
        tokens, _ = Encoder.load(str(file)).encode(pa.array(texts, pa.large_string()))
    return sum(len(text.encode()) for text in texts) / len(tokens)


if __name__ == "__main__":
    main()
