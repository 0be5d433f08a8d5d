"""The commands `inspect`, `index`, `search`, `diff`, `whatif`, `compare-rules` and `thresholds`, which
examine a corpus and what other rules would do to it.
"""

import argparse

from gristmill.errors import UserError
from gristmill.storage.disk import LocalPath
from gristmill.storage.location import Location
from gristmill.storage.parsing import location_argument
from gristmill.storage.paths import local_path
from pipelines.commands.arguments import add_config


def add_commands(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the commands `inspect`, `index`, `search`, `diff`, `whatif`, `compare-rules` and `thresholds`."""
    _add_inspect(commands)
    _add_search(commands)
    _add_diff(commands)
    _add_rules(commands)
    _add_thresholds(commands)


def _add_inspect(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    inspect = commands.add_parser("inspect", help="show the history of a document, or sample what a rule dropped")
    inspect.add_argument("corpus", type=location_argument, help="output directory of a corpus, or its URL")
    what = inspect.add_mutually_exclusive_group(required=True)
    what.add_argument("--doc", metavar="ID", help="a document: source/path#record, or its id in hex")
    what.add_argument(
        "--rule", metavar="RULE", help="sample documents that this rule dropped, or this reason quarantined"
    )
    what.add_argument("--cluster", metavar="ID", help="the duplicates of a document, with what differs between them")
    what.add_argument(
        "--contamination", type=local_path, metavar="FILE",
        help="write a new file with one JSON line for each evaluation item found in a document",
    )  # fmt: skip
    what.add_argument("--builds", action="store_true", help="this build and the earlier ones that are kept, for `diff`")
    inspect.add_argument("--samples", type=int, default=5, help="how many documents to sample (default 5)")
    inspect.add_argument(
        "--raw", action="store_true", help="show stored text, personal data included, instead of the edited view"
    )
    inspect.set_defaults(handler=_inspect)


def _add_search(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    index = commands.add_parser("index", help="index the texts of a corpus, so that `search` need not read them")
    index.add_argument("corpus", type=location_argument, help="output directory of a corpus, or its URL")
    index.add_argument("--sources", nargs="*", metavar="SOURCE", help="only these sources (default: all)")
    index.set_defaults(handler=_index)
    search = commands.add_parser("search", help="find a phrase, or a regular expression, in the texts of a corpus")
    search.add_argument("corpus", type=location_argument, help="output directory of a corpus, or its URL")
    search.add_argument("text", help="the phrase; case and white space count")
    search.add_argument("--regex", action="store_true", help="the text is a regular expression, in the syntax of RE2")
    search.add_argument("--ignore-case", action="store_true", help="case does not count")
    search.add_argument(
        "--words",
        action="store_true",
        help="the text is an n-gram: count it between borders of words, overlaps included",
    )
    search.add_argument("--dropped", action="store_true", help="also search the documents that were dropped")
    search.add_argument("--sources", nargs="*", metavar="SOURCE", help="only these sources (default: all)")
    search.add_argument("--limit", type=int, default=20, help="documents to show (default 20); all are counted")
    search.add_argument("--context", type=int, default=60, help="characters to show on either side (default 60)")
    search.set_defaults(handler=_search)


def _add_diff(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    diff = commands.add_parser("diff", help="which documents differ between two corpora or two builds, and why")
    diff.add_argument(
        "old", type=_build_argument, metavar="OLD",
        help="`previous`, or the first digits of a fingerprint: an earlier build of NEW; or a corpus: its output directory, its "
        "manifest.json or its URL",
    )  # fmt: skip
    diff.add_argument("new", type=location_argument, metavar="NEW", help="a corpus, in the same way")
    diff.add_argument("--samples", type=int, default=2, help="ids to show for each reason (default 2)")
    diff.add_argument(
        "--ngrams", type=int, default=0, metavar="WORDS",
        help="compare n-grams of up to so many words in samples of the texts (default 0: read no texts for it)",
    )  # fmt: skip
    diff.add_argument("--json", type=local_path, metavar="FILE", help="write the figures to this file, too")
    diff.add_argument("--html", type=local_path, metavar="FILE", help="write a page with charts to this file, too")
    diff.set_defaults(handler=_diff)


def _add_rules(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    whatif = commands.add_parser(
        "whatif", help="estimate what changed filter thresholds would drop and keep, without building"
    )
    add_config(whatif)
    whatif.add_argument(
        "--set", action="append", default=[], metavar="STEP.RULE.FIELD=value", dest="changes",
        help="change one rule of a filter step, such as filter.word_count.at_least=100, or all: filter=[...]; may be repeated",
    )  # fmt: skip
    whatif.add_argument("--full", action="store_true", help="count every document from its stored columns: exact")
    whatif.add_argument("--samples", type=int, default=2, help="documents to show per source and direction (default 2)")
    whatif.add_argument("--sweep", metavar="SIGNAL", help="instead: the share kept at every threshold of one signal")
    whatif.add_argument(
        "--at-most", action="store_true", help="the sweep's bound is an upper one (default: a lower one)"
    )
    whatif.add_argument("--output", type=local_path, help="file of the sweep's chart (default sweep-SIGNAL.html)")
    whatif.set_defaults(handler=_whatif)
    compare = commands.add_parser(
        "compare-rules", help="which documents named rule sets would drop from a built corpus, and how far they agree"
    )
    compare.add_argument("corpus", type=location_argument, help="output directory of a corpus, or its URL")
    compare.add_argument("rule_sets", nargs="*", metavar="RULESET", help="default: all whose columns the corpus has")
    compare.add_argument(
        "--pairs",
        type=int,
        default=10,
        help="pairs of rule sets to print, beginning with those that differ most; 0 for all (default 10)",
    )
    compare.add_argument("--samples", type=int, default=0, help="ids to show that only one of them, or all, drop")
    compare.add_argument("--json", type=local_path, metavar="FILE", help="write the figures to this file, too")
    compare.set_defaults(handler=_compare_rules)


def _add_thresholds(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    thresholds = commands.add_parser(
        "thresholds", help="print rules with bounds by language, from the distributions of a built corpus"
    )
    thresholds.add_argument("corpus", type=location_argument, help="output directory of a corpus, or its URL")
    thresholds.add_argument(
        "rules", nargs="+", metavar="RULES", help="language_score, or a rule set of FineWeb's or Gopher's families"
    )
    thresholds.add_argument(
        "--reference", default="en", metavar="LANGUAGE", help="the language that the sets were made for (default en)"
    )
    thresholds.add_argument(
        "--least",
        type=int,
        default=1000,
        metavar="VALUES",
        help="fewest values of a language for its own bounds (default 1000)",
    )
    thresholds.set_defaults(handler=_thresholds)


def _build_argument(text: str) -> Location | str:
    from pipelines.building.earlier_builds import is_build_name

    return text if is_build_name(text) else location_argument(text)


def _inspect(options: argparse.Namespace) -> int:
    from pipelines.explore.build_history import show_builds
    from pipelines.explore.contamination import write_contamination_report
    from pipelines.explore.inspect_cluster import show_cluster
    from pipelines.explore.inspect_document import show_document, show_rule

    if options.builds:
        show_builds(options.corpus)
    elif options.contamination is not None:
        write_contamination_report(options.corpus, options.contamination)
    elif options.cluster is not None:
        show_cluster(options.corpus, options.cluster, options.samples, raw=options.raw)
    elif options.doc is not None:
        show_document(options.corpus, options.doc, raw=options.raw)
    else:
        show_rule(options.corpus, options.rule, options.samples, raw=options.raw)
    return 0


def _index(options: argparse.Namespace) -> int:
    from pipelines.explore.searching.index_corpus import index_corpus

    index_corpus(options.corpus, options.sources)
    return 0


def _search(options: argparse.Namespace) -> int:
    from pipelines.explore.searching.query import Query
    from pipelines.explore.searching.search_corpus import search_corpus
    from pipelines.explore.searching.search_lines import show_found

    if options.limit < 0:
        raise UserError(f"--limit: got {options.limit}, expected 0 or more")
    query = Query(options.text, options.regex, options.ignore_case, options.context, options.words)
    show_found(search_corpus(options.corpus, query, options.sources, options.dropped, options.limit))
    return 0


def _diff(options: argparse.Namespace) -> int:
    from pipelines.building.earlier_builds import find_earlier
    from pipelines.explore.comparison.compare_corpora import compare_corpora
    from pipelines.explore.comparison.corpora_table import show_corpora

    if options.samples < 0:
        raise UserError(f"--samples: got {options.samples}, expected 0 or more")
    old = find_earlier(options.new, options.old) if isinstance(options.old, str) else options.old
    comparison = compare_corpora(old, options.new, options.ngrams)
    if options.json is not None:
        import json

        options.json.write_text(json.dumps(comparison.as_json(), indent=1) + "\n")
    if options.html is not None:
        from pipelines.explore.comparison.corpora_page import corpora_page

        options.html.write_atomic(corpora_page(comparison, options.samples).encode())
    show_corpora(comparison, options.samples)
    return 0


def _whatif(options: argparse.Namespace) -> int:
    from pipelines.explore.whatif import what_if
    from pipelines.explore.whatif_table import show_answer
    from pipelines.planning.corpus import load_corpus_config
    from pipelines.report.sweep import sweep

    if options.samples < 0:
        raise UserError(f"--samples: got {options.samples}, expected 0 or more")
    config = load_corpus_config(options.config, options.overrides)
    if (options.sweep is None) == (not options.changes):
        raise UserError("whatif: say what to change with --set, or which signal to --sweep")
    if options.sweep is not None:
        output = options.output or LocalPath(f"sweep-{options.sweep}.html")
        sweep(config.place, options.sweep, "at_most" if options.at_most else "at_least", output)
    else:
        question = what_if(config, options.changes)
        show_answer(question, question.run(full=options.full), options.samples)
    return 0


def _compare_rules(options: argparse.Namespace) -> int:
    from pipelines.explore.compare_rules import compare_rules, comparison_data
    from pipelines.explore.compare_table import show_comparison

    if options.pairs < 0:
        raise UserError(f"--pairs: got {options.pairs}, expected 0 or more")
    comparison = compare_rules(options.corpus, options.rule_sets, options.samples)
    if options.json is not None:
        import json

        options.json.write_text(json.dumps(comparison_data(comparison, options.samples), indent=1) + "\n")
    show_comparison(comparison, options.samples, options.pairs)
    return 0


def _thresholds(options: argparse.Namespace) -> int:
    from pipelines.explore.language_thresholds import language_thresholds

    print(language_thresholds(options.corpus, options.rules, options.reference, options.least).as_yaml(), end="")
    return 0
