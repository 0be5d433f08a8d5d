"""The commands `forget` and `gc`: remove documents from a corpus directory, or steps that are no longer used."""

import argparse

from gristmill.errors import UserError
from gristmill.storage.parsing import location_argument
from gristmill.storage.paths import local_path


def add_commands(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the commands `forget` and `gc`."""
    forget = commands.add_parser("forget", help="remove documents from everything in a corpus directory")
    forget.add_argument(
        "corpus",
        type=location_argument,
        help="output directory of a corpus; given alone, finish an interrupted removal",
    )
    forget.add_argument("--ids", type=local_path, metavar="FILE", help="one id per line: source/path#record, or hex")
    forget.add_argument("--urls", type=local_path, metavar="FILE", help="one URL per line; all documents with that URL")
    forget.add_argument(
        "--runs", type=local_path, metavar="DIR", help="list the training runs under DIR that have read them"
    )
    forget.set_defaults(handler=_forget)
    gc = commands.add_parser("gc", help="list steps of an output directory that none of these configurations uses")
    gc.add_argument("configs", type=local_path, nargs="+", help="corpus YAMLs with the same output")
    gc.add_argument("--delete", action="store_true", help="remove them")
    gc.add_argument(
        "--keep",
        type=int,
        metavar="N",
        default=1,
        help="earlier builds whose steps stay, for `diff` (default 1, the last one)",
    )
    gc.set_defaults(handler=_gc)


def _forget(options: argparse.Namespace) -> int:
    from pipelines.erasure.erase import erase

    erase(options.corpus, options.ids, options.urls, options.runs)
    return 0


def _gc(options: argparse.Namespace) -> int:
    from pipelines.erasure.erase import collect_garbage
    from pipelines.planning.corpus import load_corpus_config

    if options.keep < 0:
        raise UserError(f"--keep: got {options.keep}, expected 0 or more earlier builds")
    collect_garbage([load_corpus_config(path) for path in options.configs], delete=options.delete, keep=options.keep)
    return 0
