"""The commands `stages`, `signals`, `rules` and `formats`, which list what a corpus file can name; `schema`,
which prints the JSON Schema of corpus files; and `crawl-files`, which lists the files of a crawl that hold
the pages found in its index.
"""

import argparse
import dataclasses
import inspect
import json
import re
import sys
from typing import Any

from gristmill.config import near_match
from gristmill.console import first_sentence, print_pairs
from gristmill.errors import UserError
from gristmill.storage.paths import local_path
from gristmill.terminal import printable, quantity

_ROW = re.compile(r"\| (\w+) \| ([^|]*) \| ((?:[^|\\]|\\.)*) \|")


def add_commands(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the commands `stages`, `signals`, `rules`, `formats`, `schema` and `crawl-files`."""
    stages = commands.add_parser("stages", help="the stages of a corpus file, or all about one")
    stages.add_argument("name", nargs="?", help="a stage: its documentation and its knobs")
    stages.set_defaults(handler=_stages)
    signals = commands.add_parser("signals", help="the columns of quality_signals, for rules: unit and definition")
    signals.set_defaults(handler=_signals)
    rules = commands.add_parser("rules", help="the named rule sets of `filter`, or the rules of one")
    rules.add_argument("name", nargs="?", help="a rule set, such as gopher_quality@massivetext")
    rules.set_defaults(handler=_rules)
    formats = commands.add_parser("formats", help="the formats of sources, and what a record is in each")
    formats.set_defaults(handler=_formats)
    schema = commands.add_parser("schema", help="print the JSON Schema of corpus files, for editors")
    schema.set_defaults(handler=_schema)
    crawl = commands.add_parser(
        "crawl-files", help="list the files of a crawl that hold what a query of its index found"
    )
    crawl.add_argument(
        "indexes", type=local_path, nargs="+", metavar="FILE", help="answers of an index, as JSON lines or CDXJ"
    )
    crawl.add_argument(
        "--kind", choices=("warc", "wet", "wat"), default="warc", help="which files of the same captures (default warc)"
    )
    crawl.add_argument("--output", type=local_path, help="file of the list (default: print it)")
    crawl.set_defaults(handler=_crawl_files)


def _crawl_files(options: argparse.Namespace) -> int:
    from pipelines.reading.web.crawl_index import crawl_files

    found = crawl_files(options.indexes, options.kind)
    names = "".join(f"{name}\n" for name in found.files)
    if options.output is None:
        print(printable(names, lines=True), end="")
    else:
        options.output.write_atomic(names.encode())
    captured = f"{quantity(found.captures, 'capture')} in {quantity(len(found.files), 'file')}"
    print(f"{captured}; the files also hold other pages, which a source reads, too", file=sys.stderr)
    return 0


def _stages(options: argparse.Namespace) -> int:
    from pipelines.planning.installed_stages import installed_stages, stage_class
    from pipelines.stages import STAGES

    if options.name is None:
        print_pairs({name: first_sentence(kind) for name, kind in sorted(STAGES.items())})
        print_pairs(dict.fromkeys(installed_stages(), "of an installed package"))
        return 0
    names = [*STAGES, *installed_stages()]
    kind: Any = stage_class(_known(options.name, names, "stages"), {})
    print(inspect.getdoc(kind))
    knobs = {field.name: _default(field) for field in dataclasses.fields(kind) if field.init}
    if knobs:
        print("\nknobs, which docs/corpus_file.md explains:")
        print_pairs(knobs)
    return 0


def _default(field: "dataclasses.Field[Any]") -> str:
    if field.default_factory is not dataclasses.MISSING:
        return f"default {field.default_factory()!r}"
    return "required" if field.default is dataclasses.MISSING else f"default {field.default!r}"


def _signals(options: argparse.Namespace) -> int:
    from pipelines.stages.measure.quality_signals import QualitySignals

    rows = _ROW.findall(inspect.getdoc(QualitySignals) or "")
    print_pairs(
        {name: f"{' '.join(definition.split())} [{unit}]" for name, unit, definition in rows if name != "column"}
    )
    return 0


def _rules(options: argparse.Namespace) -> int:
    from pipelines.stages.decide.rule_sets import SETS

    if options.name is None:
        print_pairs({name: f"{len(limits)} rules" for name, limits in SETS.items()})
        return 0
    for limit in SETS[_known(options.name, list(SETS), "rules")]:
        bounds = [
            f"{words} {value}"
            for words, value in (("at least", limit.at_least), ("at most", limit.at_most))
            if value is not None
        ]
        bounds += [f"none of {', '.join(map(str, limit.none_of))}"] if limit.none_of else []
        print(f"{limit.name or limit.signal}: {limit.signal} {' and '.join(bounds)}")
    return 0


def _formats(options: argparse.Namespace) -> int:
    from gristmill.plugins import installed
    from pipelines.reading.sources.registry import FORMATS, GROUP

    print_pairs({name: f"a record is {kind.record}" for name, kind in FORMATS.items()})
    print_pairs(dict.fromkeys(sorted(installed(GROUP)), "of an installed package"))
    return 0


def _schema(options: argparse.Namespace) -> int:
    from pipelines.planning.corpus import corpus_schema

    print(json.dumps(corpus_schema(), indent=1))
    return 0


def _known(name: str, names: list[str], command: str) -> str:
    if name not in names:
        raise UserError(f"{command}: got {name!r}{near_match(name, names)}; `python -m pipelines {command}` lists all")
    return name
