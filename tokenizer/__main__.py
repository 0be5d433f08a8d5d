"""`python -m tokenizer train | inspect`: learn a byte-level BPE from text files; see what a tokenizer does to text."""

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

import pyarrow as pa
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.progress import Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from tokenizer.encode import Encoder
from tokenizer.measure import Measurement, Vocabulary, describe_vocabulary, measure
from tokenizer.texts import read_texts
from tokenizer.train import PATTERNS, train_byte_bpe

# Texts of each file that both libraries encode before anything is measured.
CHECKED_TEXTS = 200


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status (0, or 1 after an error message)."""
    options = parser().parse_args(arguments)
    try:
        options.run(options)
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def parser() -> argparse.ArgumentParser:
    """All commands and their arguments."""
    parser = argparse.ArgumentParser(prog="python -m tokenizer", description=__doc__, allow_abbrev=False)
    commands = parser.add_subparsers(required=True, metavar="train | inspect")
    train = commands.add_parser("train", help="learn a byte-level BPE from text files")
    train.add_argument(
        "files", nargs="+", metavar="FILE", help="UTF-8 text or .jsonl, also .gz; a text file is one text"
    )
    train.add_argument("--vocab-size", type=int, required=True, metavar="N", help="with 128 reserved and 256 bytes")
    train.add_argument("--output", required=True, metavar="DIR", help="where tokenizer.json is written")
    train.add_argument("--field", default="text", help="field of a JSON line that holds the text (default: text)")
    train.add_argument("--pattern", choices=sorted(PATTERNS), default="llama3", help="how text is cut before merging")
    train.add_argument("--min-frequency", type=int, default=2, help="merge only pairs seen this often (default: 2)")
    train.add_argument("--overwrite", action="store_true", help="replace the tokenizer.json in DIR")
    train.set_defaults(run=_train)
    inspect = commands.add_parser("inspect", help="vocabulary facts, and fertility and round trip on your texts")
    inspect.add_argument("tokenizer", metavar="DIR_OR_JSON", help="a tokenizer.json or a directory that holds one")
    inspect.add_argument(
        "--text", action="append", default=[], metavar="NAME=FILE", help="measure on a file; repeatable"
    )
    inspect.add_argument("--field", default="text", help="field of a JSON line that holds the text (default: text)")
    inspect.add_argument("--longest", type=int, default=20, metavar="N", help="longest tokens to show (default: 20)")
    inspect.add_argument("--json", action="store_true", help="print JSON instead of tables")
    inspect.set_defaults(run=_inspect)
    return parser


def _train(options: argparse.Namespace) -> None:
    target = Path(options.output) / "tokenizer.json"
    if target.exists() and not options.overwrite:
        raise ValueError(f"{target}: exists already; choose another --output, or replace it with --overwrite")
    progress = Progress(
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        transient=True,
    )
    with progress:
        texts = _watched((text for file in options.files for text in read_texts(file, options.field)), progress)
        content = train_byte_bpe(
            texts, options.vocab_size, pattern=options.pattern, min_frequency=options.min_frequency
        )
    _write(target, content)
    print(f"{target}: {options.vocab_size} tokens; next: python -m tokenizer inspect {options.output} --text NAME=FILE")


def _watched(texts: Iterable[str], progress: Progress) -> Iterator[str]:
    task: TaskID = progress.add_task("reading")
    documents = characters = 0
    seen = "nothing"
    for text in texts:
        documents, characters = documents + 1, characters + len(text)
        seen = f"{documents:,} documents, {characters / 1e6:,.1f} million characters"
        progress.update(task, description=f"reading: {seen}")
        yield text
    progress.update(task, description=f"merging pairs: {seen}")


def _write(target: Path, content: bytes) -> None:
    """Under another name first: a reader never sees half a file."""
    target.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=".tokenizer-")
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        Path(name).chmod(0o644)
        Path(name).replace(target)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _inspect(options: argparse.Namespace) -> None:
    encoder = Encoder.load(options.tokenizer)
    vocabulary = describe_vocabulary(encoder, options.longest)
    texts: dict[str, Measurement] = {}
    for argument in options.text:
        name, equals, file = argument.partition("=")
        if not equals or not name or name in texts:
            raise ValueError(f"--text: got {argument!r}, expected NAME=FILE with a NAME of its own")
        documents = pa.array(read_texts(file, options.field), pa.large_string())
        sample = documents.slice(0, CHECKED_TEXTS)
        encoder.check(sample, [f"{file}#{number}" for number in range(len(sample))])
        texts[name] = measure(encoder, documents)
    if options.json:
        measured = {name: asdict(found) for name, found in texts.items()}
        print(json.dumps({**asdict(vocabulary), "texts": measured}, indent=2))
    else:
        _print_tables(vocabulary, texts)


def _print_tables(vocabulary: Vocabulary, texts: dict[str, Measurement]) -> None:
    console = Console()
    facts = Table(box=box.SIMPLE, show_header=False)
    specials = list(vocabulary.specials.items())
    shown = ", ".join(f"{token} {token_id}" for token, token_id in specials[:8])
    shown += ", ..." if len(specials) > 8 else ""
    for label, value in {
        "tokenizer": vocabulary.path,
        "kind": vocabulary.kind,
        "vocabulary": f"{vocabulary.vocab_size:,} tokens, {vocabulary.mean_token_bytes:.2f} bytes on average",
        "special tokens": f"{len(specials)}: {shown}" if specials else "none",
        "encoded by": f"{vocabulary.library} ({vocabulary.library_reason})",
        "longest tokens": "  ".join(token.replace(" ", "␣") for token in vocabulary.longest_tokens),
    }.items():
        facts.add_row(label, escape(value))
    console.print(facts)
    if not texts:
        return
    table = Table(box=box.SIMPLE, pad_edge=False)
    table.add_column("name", min_width=8, overflow="fold")
    for heading in ("texts", "MB", "tokens", "tokens\nper word", "bytes\nper token", "vocabulary\nused", "round\ntrip"):
        table.add_column(heading, justify="right", no_wrap=True)
    for name, found in texts.items():
        table.add_row(
            escape(name),
            f"{found.documents:,}",
            f"{found.bytes / 1e6:,.2f}",
            f"{found.tokens:,}",
            f"{found.tokens_per_word:.3f}",
            f"{found.bytes_per_token:.3f}",
            f"{found.distinct_tokens / vocabulary.vocab_size:.1%}",
            "exact" if not found.round_trip_failures else f"{found.round_trip_failures:,} differ",
        )
    console.print(table)


if __name__ == "__main__":
    sys.exit(main())
