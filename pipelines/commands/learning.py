"""The commands `classifier` and `vectors`: learn classifiers and word vectors from built corpora, and use
word vectors.
"""

import argparse
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from gristmill.errors import UserError
from gristmill.storage.parsing import location_argument
from gristmill.storage.paths import local_path
from gristmill.terminal import printable

if TYPE_CHECKING:
    from pipelines.vectors.align_spaces import MapFit
    from pipelines.vectors.word_vectors import Neighbour

_FILE = "a file of vectors in word2vec's text format, or a directory of `vectors train`"


def add_commands(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the commands `classifier` and `vectors`."""
    _add_classifier(commands)
    actions = commands.add_parser(
        "vectors", help="train static word vectors on a corpus, query them, align two spaces, find words that moved"
    ).add_subparsers(dest="action", required=True, metavar="ACTION")
    _add_train(actions)
    _add_queries(actions)
    _add_two_spaces(actions)


def _add_classifier(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    classifier = commands.add_parser(
        "classifier", help="train a classifier of texts, columns or embeddings on documents of built corpora"
    )
    actions = classifier.add_subparsers(dest="action", required=True, metavar="ACTION")
    train = actions.add_parser("train", help="train, measure on held-out documents, write model and model card")
    train.add_argument("config", type=local_path, help="a YAML with output and labelled documents")
    train.add_argument("overrides", nargs="*", default=[], metavar="a.b=value", help="fields of the YAML to change")
    train.add_argument("--overwrite", action="store_true", help="replace an existing classifier")
    train.set_defaults(handler=_train_classifier)


def _add_train(actions: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    train = actions.add_parser("train", help="train skip-gram or CBOW vectors on the kept, edited text of a corpus")
    train.add_argument("corpus", type=location_argument, help="output directory of a corpus, or its URL")
    train.add_argument("output", type=local_path, help="directory to write vectors.txt and vectors.json to")
    train.add_argument(
        "overrides",
        nargs="*",
        default=[],
        metavar="name=value",
        help="settings, such as model=cbow dim=300 min_count=10",
    )
    train.add_argument("--sources", nargs="*", metavar="SOURCE", help="only these sources (default: all)")
    train.add_argument("--overwrite", action="store_true", help="replace existing vectors")
    train.set_defaults(handler=_train_vectors)


def _add_queries(actions: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    near = actions.add_parser("neighbours", help="the words with the highest cosine to a word")
    near.add_argument("vectors", type=local_path, help=_FILE)
    near.add_argument("word", help="a word of the vectors")
    near.add_argument("--count", type=int, default=10, help="words to show (default 10)")
    near.set_defaults(handler=_neighbours)
    analogy = actions.add_parser(
        "analogy", help="what is to C as B is to A, or the accuracy on a file of such questions"
    )
    analogy.add_argument("vectors", type=local_path, help=_FILE)
    analogy.add_argument("words", nargs="*", metavar="WORD", help="A B C, such as: man king woman")
    analogy.add_argument(
        "--questions", type=local_path, metavar="FILE", help="instead: questions as in word2vec's questions-words.txt"
    )
    analogy.add_argument("--count", type=int, default=10, help="words to show (default 10)")
    analogy.set_defaults(handler=_analogy)


def _add_two_spaces(actions: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    align = actions.add_parser(
        "align", help="map vectors onto those of another language or corpus by an orthogonal matrix"
    )
    align.add_argument("source", type=local_path, help=_FILE)
    align.add_argument("target", type=local_path, help=_FILE)
    align.add_argument("output", type=local_path, help="directory to write source.txt and target.txt, in one space, to")
    seeds = align.add_mutually_exclusive_group()
    seeds.add_argument(
        "--seeds", choices=("identical", "numerals"), default="identical",
        help="words that mean the same: those in both spaces, or only numerals (default identical)",
    )  # fmt: skip
    seeds.add_argument("--dictionary", type=local_path, metavar="FILE", help="or a file with two words a line")
    align.add_argument(
        "--held-out", type=float, default=0.2, metavar="SHARE", help="share of them only measured (default 0.2)"
    )
    align.add_argument("--refinements", type=int, default=5, help="fits on mutual nearest neighbours (default 5)")
    align.add_argument(
        "--most", type=int, metavar="WORDS", help="read only the most frequent words of each (default: all)"
    )
    align.add_argument("--overwrite", action="store_true", help="replace what is in the directory")
    align.set_defaults(handler=_align)
    moved = actions.add_parser(
        "moved", help="which words have other neighbours than in another corpus, or in another year"
    )
    moved.add_argument("old", type=local_path, help=_FILE)
    moved.add_argument("new", type=local_path, help=_FILE)
    moved.add_argument(
        "--most", type=int, default=10_000, metavar="WORDS", help="the most frequent words of each (default 10000)"
    )
    moved.add_argument("--count", type=int, default=20, help="words to show (default 20)")
    moved.set_defaults(handler=_moved)


def _train_classifier(options: argparse.Namespace) -> int:
    from pipelines.classifiers.train_classifier import load_classifier_config, train

    config = load_classifier_config(options.config, options.overrides)
    facts = train(config, overwrite=options.overwrite)
    for warning in facts["warnings"]:
        print(f"warning: {warning}")
    if "by_source" in facts:
        _show_agreement(config.output, facts)
        return 0
    for left in (left for left in facts["leave_one_source_out"] if left["roc_auc"] is not None):
        print(f"without {printable(left['source'])} ({left['class']}): ROC-AUC {left['roc_auc']:.4f} on its documents")
    _warn_of(facts["learned"], "the classes")
    auc = facts["held_out"]["roc_auc"]
    print(f"{config.output}: ROC-AUC {auc:.4f} on held-out documents; read MODEL_CARD.md there")
    return 0


def _show_agreement(output: str, facts: Mapping[str, Any]) -> None:
    for entry in facts["by_source"]:
        if (left_out := entry.get("spearman_left_out")) is not None:
            print(f"without {printable(entry['source'])}: Spearman {left_out:.4f} on its documents")
    _warn_of(facts["learned"], "the judge's scores")
    held = facts["held_out"]
    correlation = "none" if held["spearman"] is None else f"{held['spearman']:.4f}"
    print(f"{output}: Spearman {correlation}, F1 {held['f1']:.4f} on {held['documents']:,} held-out documents; read "
          "MODEL_CARD.md there")  # fmt: skip


def _warn_of(learned: str, wanted: str) -> None:
    if learned == "source":
        print(f"warning: it learned its sources rather than {wanted}; read MODEL_CARD.md")
    elif learned == "nothing":
        print(f"warning: it learned nothing of {wanted}; read MODEL_CARD.md")


def _train_vectors(options: argparse.Namespace) -> int:
    from gristmill.config import override, parse
    from pipelines.vectors.train_vectors import VectorSettings, train_vectors

    settings = parse(VectorSettings, override({}, options.overrides), "vectors train")
    facts = train_vectors(options.corpus, options.output, settings, options.sources, overwrite=options.overwrite)
    words = facts["words"]
    print(f"{options.output}: {words['with_vectors']:,} of {words['different']:,} words have vectors, "
          f"{words['trained_on'] / words['text']:.1%} of {words['text']:,} in the text")  # fmt: skip
    if not facts["reproducible"]:
        print("with several threads, training again gives another file; thread=1 gives the same one")
    return 0


def _neighbours(options: argparse.Namespace) -> int:
    from pipelines.vectors.word_vectors import neighbours, read_vectors

    _check_count("--count", options.count)
    _show(neighbours(read_vectors(options.vectors), options.word, options.count))
    return 0


def _analogy(options: argparse.Namespace) -> int:
    from pipelines.vectors.word_vectors import answer_questions, complete_analogy, read_vectors

    _check_count("--count", options.count)
    if (options.questions is None) != (len(options.words) == 3):
        raise UserError("analogy: expected three words, A B C, or --questions FILE")
    vectors = read_vectors(options.vectors)
    if options.questions is None:
        a, b, c = options.words
        _show(complete_analogy(vectors, (a, b, c), options.count))
        return 0
    scores = answer_questions(vectors, options.questions)
    for each in scores:
        share = f"{each.correct / each.covered:.1%}" if each.covered else "-"
        print(f"{printable(each.section)}: {share} of {each.covered:,} ({each.questions:,} asked)")
    covered = sum(each.covered for each in scores)
    if covered:
        print(f"all: {sum(each.correct for each in scores) / covered:.1%} of {covered:,}")
    return 0


def _align(options: argparse.Namespace) -> int:
    from pipelines.vectors.align_spaces import align_spaces, read_dictionary, seed_pairs
    from pipelines.vectors.word_vectors import check_output, read_vectors, write_vectors

    if not 0 < options.held_out < 1:
        raise UserError(f"--held-out: got {options.held_out}, expected a number between 0 and 1")
    if options.refinements < 0:
        raise UserError(f"--refinements: got {options.refinements}, expected 0 or more")
    if options.most is not None:
        _check_count("--most", options.most)
    check_output(options.output, overwrite=options.overwrite)
    source, target = (read_vectors(place, options.most) for place in (options.source, options.target))
    if options.dictionary is not None:
        pairs = read_dictionary(options.dictionary, source, target)
    else:
        pairs = seed_pairs(source, target, options.seeds)
    alignment = align_spaces(source, target, pairs, held_out=options.held_out, refinements=options.refinements)
    options.output.mkdir(parents=True, exist_ok=True)
    for name, space in (("source.txt", alignment.source), ("target.txt", alignment.target)):
        write_vectors(space, options.output / name)
    _show_fit("seeds", alignment.seeds)
    if options.refinements:
        _show_fit("refined", alignment.refined)
    return 0


def _show_fit(name: str, fit: "MapFit") -> None:
    for measure, found in (("CSLS", fit.csls), ("cosine", fit.cosine)):
        ranks = ", ".join(f"{found.share(rank):.1%} ± {found.error(rank):.1%} at {rank}" for rank in found.at)
        print(f"{name}, {fit.pairs:,} pairs, {measure}: {ranks} (of {found.words:,} held-out words)")


def _moved(options: argparse.Namespace) -> int:
    from pipelines.vectors.moved_words import find_moved_words
    from pipelines.vectors.word_vectors import read_vectors

    _check_count("--count", options.count)
    _check_count("--most", options.most)
    both = [read_vectors(place, options.most) for place in (options.old, options.new)]
    displacement = find_moved_words(both[0], both[1], options.most)
    low, median, high = displacement.quantiles(0.25, 0.5, 0.9)
    print(
        f"{len(displacement.words):,} common words; distance: 25 % up to {low:.3f}, 50 % {median:.3f}, 90 % {high:.3f}"
    )
    for each in displacement.farthest(options.count):
        sides = (" ".join(map(printable, words)) for words in (each.before, each.now))
        print(f"{each.distance:.3f} {printable(each.word)}: {' -> '.join(sides)}")
    return 0


def _show(words: Iterable["Neighbour"]) -> None:
    for each in words:
        print(f"{each.score:.4f} {printable(each.word)}")


def _check_count(name: str, count: int) -> None:
    if count < 1:
        raise UserError(f"{name}: got {count}, expected 1 or more")
