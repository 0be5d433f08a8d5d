"""The commands `export` and `datasheet`: write the kept text or its tokens for other tools, and document the
corpus.
"""

import argparse

from gristmill.errors import UserError
from gristmill.storage.parsing import location_argument
from gristmill.storage.paths import local_path

_TEXTS = ("parquet", "jsonl", "webdataset", "mds")
_TOKENS = ("nanogpt", "megatron", "litdata")


def add_commands(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the commands `export` and `datasheet`."""
    export = commands.add_parser(
        "export", help="write the kept, edited text as Parquet or JSONL, or the tokens for other trainers"
    )
    export.add_argument("corpus", type=location_argument, help="output directory of a corpus, or its URL")
    export.add_argument(
        "output", type=location_argument, help="directory, or URL, to write to; created if missing; must be empty"
    )
    export.add_argument("--format", choices=(*_TEXTS, *_TOKENS), default="parquet",
        help="default parquet; webdataset is a tar with a text and a JSON file for each document, mds the shards of MosaicML "
        f"Streaming; {', '.join(_TOKENS)} are ids",
    )  # fmt: skip
    export.add_argument(
        "--workers", type=int, metavar="N",
        help="processes that write a file each, with Ray (default: one for each GiB of text, at most the cores)",
    )  # fmt: skip
    export.add_argument("--shard-set", metavar="STEP", help="the shards to write as tokens, if the corpus has several")
    export.add_argument("--sources", nargs="*", metavar="SOURCE", help="only these sources (default: all)")
    export.add_argument(
        "--columns",
        nargs="*",
        type=_list,
        metavar="COLUMN",
        default=(),
        help="annotations to write with the text, such as language; separated by spaces or commas",
    )
    export.add_argument(
        "--without", type=_list, default=(), metavar="url,meta",
        help="leave out the URLs, or the other fields of the records, which may hold personal data",
    )  # fmt: skip
    export.set_defaults(handler=_export)
    sheet = commands.add_parser("datasheet", help="write a datasheet of a corpus in Markdown or HTML")
    sheet.add_argument("corpus", type=location_argument, help="output directory of a corpus, or its URL")
    sheet.add_argument("--notes", type=local_path, metavar="FILE", help="YAML with what the corpus cannot state itself")
    sheet.add_argument(
        "--output", type=local_path, metavar="FILE", help="file.md or file.html to write (default: print)"
    )
    sheet.set_defaults(handler=_datasheet)


def _list(names: str) -> list[str]:
    return [name.strip() for name in names.split(",") if name.strip()]


def _export(options: argparse.Namespace) -> int:
    from pipelines.export.text_export import export_corpus

    if options.workers is not None and options.workers < 1:
        raise UserError(f"--workers: got {options.workers}, expected 1 or more")
    if options.format in _TOKENS:
        from pipelines.export.token_export import export_tokens

        if options.columns or options.without:
            raise UserError(
                f"--columns and --without: tokens have no columns; leave them out with --format {options.format}"
            )
        export_tokens(
            options.corpus, options.output, options.format, options.shard_set, options.sources, options.workers
        )
        return 0
    if options.shard_set is not None:
        raise UserError(f"--shard-set: --format {options.format} is text; use it with {', '.join(_TOKENS)}")
    columns = [name for names in options.columns for name in names]
    export_corpus(
        options.corpus, options.output, options.format, options.sources, columns, options.without, options.workers
    )
    return 0


def _datasheet(options: argparse.Namespace) -> int:
    from gristmill.config import load_yaml, parse
    from pipelines.report.datasheet import DatasheetNotes, datasheet, load_report
    from pipelines.report.datasheet_page import datasheet_markdown, datasheet_page

    writers = {".md": datasheet_markdown, ".html": datasheet_page}
    suffix = ".md" if options.output is None else options.output.suffix
    if suffix not in writers:
        raise UserError(f"--output: got {options.output}, expected a name that ends in {' or '.join(writers)}")
    notes = DatasheetNotes()
    if options.notes is not None:
        notes = parse(DatasheetNotes, load_yaml(options.notes), str(options.notes))
    report = load_report(options.corpus)
    sheet = writers[suffix](report["corpus"], datasheet(report, notes))
    if options.output is None:
        print(sheet, end="")
    else:
        options.output.write_atomic(sheet.encode())
    return 0
