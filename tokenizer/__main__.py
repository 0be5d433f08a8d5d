"""`python -m tokenizer train | inspect | compare`: train a tokenizer on text files, and measure tokenizers on
texts.
"""

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import pyarrow as pa
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.progress import Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from gristmill.cli import run_command
from gristmill.errors import UserError, attach_filename
from gristmill.storage.paths import local_path
from gristmill.terminal import printable
from tokenizer.chart import MEASURES, cells, render_page, render_svg
from tokenizer.compare import compare, count_threads, read_groups
from tokenizer.encode import Encoder
from tokenizer.kinds.byte_bpe import PATTERNS
from tokenizer.kinds.character_vocabulary import UNKNOWN
from tokenizer.kinds.learned import COVERAGE
from tokenizer.kinds.train import KINDS, NOTICES, WITHOUT_SIZE, train
from tokenizer.measure import Measurement, Vocabulary, describe_vocabulary, measure
from tokenizer.texts import read_texts
from tokenizer.vocabulary.definition import read_definition

# Leading texts of each file on which both libraries are compared before anything is measured.
CHECKED_TEXTS = 200


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status (see `gristmill.cli.run_command`)."""
    return run_command(parser(), arguments, "begins again, as nothing was written", (UserError, ValueError))


def check_named_path(argument: str) -> str:
    """Return an argument of the form NAME=PATH or PATH unchanged. Raises PathError if the path is a URL or
    cannot be expanded.
    """
    local_path(argument.partition("=")[2] or argument)
    return argument


def parser() -> argparse.ArgumentParser:
    """Build the parser of all commands and their arguments."""
    parser = argparse.ArgumentParser(prog="python -m tokenizer", description=__doc__, allow_abbrev=False)
    commands = parser.add_subparsers(required=True, metavar="train | inspect | compare")
    train = commands.add_parser("train", help="learn a tokenizer from text files")
    train.add_argument(
        "files",
        nargs="+",
        type=local_path,
        metavar="FILE",
        help="UTF-8 text or .jsonl, also .gz; a text file is one text",
    )
    train.add_argument(
        "--vocab-size",
        type=int,
        metavar="N",
        help="number of tokens, including 128 reserved ids; bytes always has 384, characters those of the texts",
    )
    train.add_argument("--kind", choices=KINDS, default="byte_bpe", help="default: byte_bpe")
    train.add_argument(
        "--output", required=True, type=local_path, metavar="DIR", help="where tokenizer.json is written"
    )
    train.add_argument("--field", default="text", help="field of a JSON line that holds the text (default: text)")
    train.add_argument(
        "--pattern", choices=sorted(PATTERNS), help="how byte_bpe cuts text before merging (default: llama3)"
    )
    train.add_argument(
        "--lowercase", action="store_true", help="convert to lower case (bpe, unigram); wordpiece also strips accents"
    )
    train.add_argument(
        "--coverage",
        type=float,
        default=COVERAGE,
        help=f"share of characters to include (default: {COVERAGE}); not for kinds over bytes, nor for characters",
    )
    train.add_argument(
        "--min-frequency", type=int, help="merge only pairs seen this often (default: 2); not for unigram"
    )
    train.add_argument(
        "--unknown",
        choices=UNKNOWN,
        help="characters: a character outside the vocabulary is <unk> (default), or an error",
    )
    train.add_argument("--overwrite", action="store_true", help="replace the tokenizer.json in DIR")
    train.set_defaults(handler=_train)
    inspect = commands.add_parser("inspect", help="show facts on a vocabulary, and measure it on your texts")
    inspect.add_argument(
        "tokenizer", type=local_path, metavar="DIR_OR_JSON", help="a tokenizer.json or a directory that holds one"
    )
    inspect.add_argument(
        "--text",
        action="append",
        default=[],
        type=check_named_path,
        metavar="NAME=FILE",
        help="measure on a file; repeatable",
    )
    inspect.add_argument("--field", default="text", help="field of a JSON line that holds the text (default: text)")
    inspect.add_argument("--longest", type=int, default=20, metavar="N", help="longest tokens to show (default: 20)")
    inspect.add_argument("--json", action="store_true", help="print JSON instead of tables")
    inspect.set_defaults(handler=_inspect)
    _add_compare(commands.add_parser("compare", help="compare tokenizers on the same texts, by source and language"))
    return parser


def _add_compare(compare: argparse.ArgumentParser) -> None:
    compare.add_argument(
        "tokenizers",
        nargs="+",
        type=check_named_path,
        metavar="[NAME=]DIR_OR_JSON",
        help="tokenizers, by default named after their directories",
    )
    compare.add_argument(
        "--text", action="extend", nargs="+", required=True, type=check_named_path, metavar="[NAME=]FILE",
        help="UTF-8 text or .jsonl, also .gz; to get the texts of a corpus: pipelines export CORPUS DIR --format jsonl",
    )  # fmt: skip
    compare.add_argument(
        "--by", nargs="+", default=(), metavar="FIELD", help="group records by these fields, such as source language"
    )
    compare.add_argument("--field", default="text", help="field of a JSON line that holds the text (default: text)")
    compare.add_argument(
        "--most-mb", type=float, default=8.0, metavar="MB", help="read this much text of each group (default: 8)"
    )
    compare.add_argument(
        "--chart", type=local_path, metavar="FILE", help="also write charts: .html with the table, or .svg"
    )
    compare.add_argument("--json", action="store_true", help="print JSON instead of a table")
    compare.set_defaults(handler=_compare)


def _train(options: argparse.Namespace) -> int:
    target = options.output / "tokenizer.json"
    if target.exists() and not options.overwrite:
        raise ValueError(f"{target}: exists already; choose another --output, or replace it with --overwrite")
    size = options.vocab_size
    if size is None and options.kind not in WITHOUT_SIZE:
        raise ValueError(f"--vocab-size: not given, but {options.kind} requires it")
    if notice := NOTICES.get(options.kind):
        print(notice, file=sys.stderr)
    progress = Progress(
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        TimeElapsedColumn(),
        console=Console(stderr=True, emoji=False),
        transient=True,
    )
    with progress:
        content = train(
            options.kind,
            _Files(options.files, options.field, progress),
            size,
            lowercase=options.lowercase,
            coverage=options.coverage,
            min_frequency=options.min_frequency,
            pattern=options.pattern,
            unknown=options.unknown,
        )
    _write(target, content)
    size = read_definition(str(target)).vocab_size
    print(f"{target}: {size} tokens; next: python -m tokenizer inspect {options.output} --text NAME=FILE")
    return 0


@dataclass(frozen=True)
class _Files:
    """The texts of several files. Each iteration reads them again and shows its progress."""

    files: Sequence[Path]
    field: str
    progress: Progress

    def __iter__(self) -> Iterator[str]:
        task: TaskID = self.progress.add_task("reading")
        documents = characters = 0
        seen = "nothing"
        for file in self.files:
            for text in read_texts(str(file), self.field):
                documents, characters = documents + 1, characters + len(text)
                seen = f"{documents:,} documents, {characters / 1e6:,.1f} million characters"
                self.progress.update(task, description=f"reading: {seen}")
                yield text
        self.progress.update(task, description=f"read: {seen}")


def _write(target: Path, content: bytes) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=".tokenizer-")
    try:
        with attach_filename(target), os.fdopen(handle, "wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        Path(name).chmod(0o644)
        Path(name).replace(target)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _inspect(options: argparse.Namespace) -> int:
    encoder = Encoder.load(str(options.tokenizer))
    vocabulary = describe_vocabulary(encoder, options.longest)
    texts: dict[str, Measurement] = {}
    for argument in options.text:
        name, equals, file = argument.partition("=")
        if not equals or not name or name in texts:
            raise ValueError(f"--text: got {argument!r}, expected NAME=FILE with a unique NAME")
        documents = pa.array(read_texts(file, options.field), pa.large_string())
        sample = documents.slice(0, CHECKED_TEXTS)
        encoder.check(sample, [f"{file}#{number}" for number in range(len(sample))])
        texts[name] = measure(encoder, documents)
    if options.json:
        measured = {name: asdict(measurement) for name, measurement in texts.items()}
        print(json.dumps({**asdict(vocabulary), "texts": measured}, indent=2))
    else:
        _print_tables(vocabulary, texts)
    return 0


def _compare(options: argparse.Namespace) -> int:
    if options.chart and options.chart.suffix not in (".html", ".svg"):
        raise ValueError(f"--chart: got {str(options.chart)!r}, expected a name that ends in .html or .svg")
    if not options.most_mb > 0:
        raise ValueError(f"--most-mb: got {options.most_mb}, expected more than 0")
    encoders = {name: Encoder.load(path) for name, path in _parse_names(options.tokenizers, "tokenizers")}
    files = _parse_names(options.text, "--text", unique=not options.by)
    texts = read_groups(files, options.by, options.most_mb * 1e6, options.field)
    rows = compare(encoders, texts)
    shown = [replace(row, tokenizer=printable(row.tokenizer), group=printable(row.group)) for row in rows]
    if options.chart:
        draw = render_svg if options.chart.suffix == ".svg" else render_page
        _write(options.chart, draw(shown))
    if options.json:
        print(json.dumps([asdict(row) for row in rows], indent=2))
        return 0
    table = Table(box=box.SIMPLE, pad_edge=False)
    for heading in ("tokenizer", "texts"):
        table.add_column(heading, min_width=8, overflow="fold")
    for heading in ("MB", "tokens", *(title.replace(" ", "\n", 1) for title in MEASURES.values())):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in shown:
        table.add_row(*map(escape, cells(row)), end_section=row.group == shown[-1].group)
    console = _print_unclipped(table)
    for name, encoder in encoders.items():
        facts = f"{encoder.kind}, {encoder.vocab_size:,} tokens, {encoder.library}, threads: {count_threads(encoder)}"
        console.print(escape(f"{printable(name)}: {facts}"))
    return 0


def _parse_names(arguments: Sequence[str], where: str, *, unique: bool = True) -> list[tuple[str, str]]:
    """Parse arguments of the form NAME=PATH or PATH into pairs (name, path). Without NAME, the name is that
    of the directory, or that of the file up to its first full stop. For a tokenizer.json, it is the name of
    its directory.
    """
    pairs: list[tuple[str, str]] = []
    for argument in arguments:
        name, equals, path = argument.partition("=")
        if not equals:
            file = Path(os.path.abspath(local_path(argument)))  # noqa: PTH100 - resolve() follows links
            folder = file.parent if file.name == "tokenizer.json" else file
            name, path = folder.name.split(".")[0] if folder.is_file() else folder.name, argument
        if not name or not path or (unique and name in [other for other, _ in pairs]):
            raise ValueError(f"{where}: got {argument!r}, expected NAME=PATH with a unique NAME")
        pairs.append((name, path))
    return pairs


def _print_tables(vocabulary: Vocabulary, texts: dict[str, Measurement]) -> None:
    console = Console(emoji=False)
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
        facts.add_row(label, escape(printable(value)))
    console.print(facts)
    if not texts:
        return
    table = Table(box=box.SIMPLE, pad_edge=False)
    table.add_column("name", min_width=8, overflow="fold")
    for heading in ("texts", "MB", "tokens", "tokens\nper word", "bytes\nper token", "vocabulary\nused", "round\ntrip"):
        table.add_column(heading, justify="right", no_wrap=True)
    for name, measured in texts.items():
        table.add_row(
            escape(printable(name)),
            f"{measured.documents:,}",
            f"{measured.bytes / 1e6:,.2f}",
            f"{measured.tokens:,}",
            f"{measured.tokens_per_word:.3f}",
            f"{measured.bytes_per_token:.3f}",
            f"{measured.distinct_tokens / vocabulary.vocab_size:.1%}",
            "exact" if not measured.round_trip_failures else f"{measured.round_trip_failures:,} differ",
        )
    _print_unclipped(table)


def _print_unclipped(table: Table) -> Console:
    """Print a table on a console wide enough for all its columns, and return the console."""
    console = Console(emoji=False)
    whole = console.measure(table, options=console.options.update(width=1000)).maximum
    console = Console(width=max(console.width, whole), emoji=False)
    console.print(table)
    return console


if __name__ == "__main__":
    sys.exit(main())
