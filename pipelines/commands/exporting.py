"""`export`: write the kept text for other tools."""

import argparse

from gristmill.storage.parsing import location_argument


def add_commands(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command `export`."""
    export = commands.add_parser("export", help="write the kept, edited text as Parquet or JSONL")
    export.add_argument("corpus", type=location_argument, help="output directory of a corpus, or its URL")
    export.add_argument(
        "output", type=location_argument, help="directory, or URL, to write to; created if missing; must be empty"
    )
    export.add_argument("--format", choices=("parquet", "jsonl"), default="parquet", help="default parquet")
    export.add_argument("--sources", nargs="*", metavar="SOURCE", help="only these sources (default: all)")
    export.add_argument(
        "--columns",
        nargs="*",
        metavar="COLUMN",
        default=(),
        help="annotations to write with the text, such as language",
    )
    export.add_argument(
        "--without", type=_list, default=(), metavar="url,meta",
        help="leave out the URLs, or the other fields of the records, which may hold personal data",
    )  # fmt: skip
    export.set_defaults(handler=_export)


def _list(names: str) -> list[str]:
    """Parse an argument of comma-separated names."""
    return [name.strip() for name in names.split(",") if name.strip()]


def _export(options: argparse.Namespace) -> int:
    from pipelines.export.text_export import export_corpus

    export_corpus(options.corpus, options.output, options.format, options.sources, options.columns, options.without)
    return 0
