"""`features`, `probe`, `similarity`, `heads` and `next-tokens`: analyse a model's states, attention heads and
predictions.
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from gristmill.config import near_match
from gristmill.errors import ConfigError, UserError
from gristmill.libraries.extras import install_extra
from gristmill.storage.parsing import location_argument, parse_local, parse_location
from gristmill.storage.paths import local_path
from gristmill.terminal import printable
from trainers.commands.settings import split_settings

if TYPE_CHECKING:
    from trainers.evaluation.probing.classifiers import Classifier
    from trainers.evaluation.probing.features import Pooling
    from trainers.tasks.examples import Examples

_POOLINGS = ("mean", "first", "last", "token")
_CLASSIFIERS = ("linear", "mlp")
_NAMED = ("task", "text", "set", "layers", "classifier", "limit", "seed", "data", "train", "test", "finetuned")
_COMPARED = ("task", "layers", "pooling", "split", "data")
_LIMIT = 2000  # examples of a split: with some 30,000 words, a layer takes seconds
_HEAD_TOKENS = 2000  # the model reads them once for each head
_TOKENS = 5000  # of a text whose next tokens are shown


def add_commands(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the commands `features`, `probe`, `similarity`, `heads` and `next-tokens`."""
    features = commands.add_parser("features", help="write hidden states of the texts of a file, of any layer")
    features.add_argument("model", metavar="RUN_OR_EXPORT", type=local_path)
    features.add_argument(
        "--text",
        metavar="FILE",
        type=location_argument,
        required=True,
        help="as text= of `evaluate`: JSONL, CSV, ..., or text",
    )
    features.add_argument("--layers", default="all", help="such as 0,6 (0 are the embeddings); default: all")
    features.add_argument(
        "--pooling",
        choices=_POOLINGS,
        default="mean",
        help="mean over tokens, first position, last token, or a row for every token",
    )
    features.add_argument("--output", metavar="FILE.parquet", type=local_path, required=True)
    features.set_defaults(handler=_features)
    probe = commands.add_parser("probe", help="train classifiers on each layer's states, beside a control task")
    probe.add_argument("model", metavar="RUN_OR_EXPORT", type=local_path)
    probe.add_argument(
        "settings",
        metavar="name=value",
        nargs="+",
        help="task=NAME|FILE.yaml, or text=FILE set=length|word_content|word_order|sentence_order; then layers=all|0,6|0,5+6 "
        f"(concatenated), classifier=linear,mlp, limit=N (examples of each split; default {_LIMIT:,}), train=SPLIT, "
        "test=SPLIT, data=DIR, seed=N, finetuned=RUN (to compare with)",
    )
    probe.add_argument("--output", metavar="FILE", type=local_path, help="a page (.html) or all scores (.json)")
    probe.set_defaults(handler=_probe)
    similarity = commands.add_parser(
        "similarity", help="cosines of the states of two texts against gold similarities, by layer, without training"
    )
    similarity.add_argument("model", metavar="RUN_OR_EXPORT", type=local_path)
    similarity.add_argument(
        "settings",
        metavar="name=value",
        nargs="+",
        help="task=stsb, or task=FILE.yaml of kind regress with two texts; then layers=all|0,6, pooling=mean,first,last "
        "(default mean), split=NAME (default dev), data=DIR",
    )
    similarity.add_argument("--output", metavar="FILE.json", type=local_path, help="all scores")
    similarity.set_defaults(handler=_similarity)
    heads = commands.add_parser("heads", help="what attention heads attend to, and the loss without them")
    heads.add_argument("model", metavar="RUN_OR_EXPORT", type=local_path)
    heads.add_argument("--text", metavar="FILE", type=location_argument, required=True, help="as for `features`")
    heads.add_argument(
        "--tokens", type=int, default=_HEAD_TOKENS, help=f"the first N of the texts; default {_HEAD_TOKENS:,}"
    )
    heads.add_argument(
        "--output",
        metavar="FILE",
        type=local_path,
        help="a page (.html), a row for each head (.parquet or .csv), or all results (.json)",
    )
    heads.set_defaults(handler=_heads)
    following = commands.add_parser("next-tokens", help="a page of what a model expects at each position of a text")
    following.add_argument("model", metavar="RUN_OR_EXPORT", type=local_path)
    following.add_argument("--text", required=True, help="the text, or with @ the name of a file that holds it")
    following.add_argument("--top", type=int, default=5, help="how many of the most probable tokens to show")
    following.add_argument("--output", metavar="FILE.html", type=local_path, required=True)
    following.set_defaults(handler=_next_tokens)


def _features(options: argparse.Namespace) -> int:
    from trainers.evaluation.probing.features import write_features
    from trainers.evaluation.probing.hidden_states import StateReader
    from trainers.evaluation.suites.text_bits import SPLIT, text_task
    from trainers.tasks.read_examples import read_examples

    _require_suffix(options.output, ".parquet")
    texts = read_examples(text_task(options.text), SPLIT, None)
    reader = StateReader.open(parse_local(str(options.model), "model"))
    layers = reader.choose_layers(options.layers)
    rows = write_features(reader, texts, layers, options.pooling, options.output)
    print(f"{options.output}: {rows:,} rows, {len(layers)} layers of width {reader.width:,}")
    return 0


def _probe(options: argparse.Namespace) -> int:
    named = _settings(options.settings, _NAMED)
    if ("task" in named) == ("text" in named):
        raise ConfigError("task: give task=NAME, task=FILE.yaml, or text=FILE with set=NAME")
    if options.output is not None and options.output.suffix not in (".html", ".json"):
        raise ConfigError(f"--output: got {options.output}, expected a name that ends in .html or .json")
    kinds = _classifiers(named.get("classifier", "linear"))
    limit, seed = _whole("limit", named.get("limit", str(_LIMIT)), 2), _whole("seed", named.get("seed", "0"), 0)
    from gristmill.storage.store import write_json
    from trainers.evaluation.probe_page import render_probes
    from trainers.evaluation.probing.finetuned_score import finetuned_score
    from trainers.evaluation.probing.hidden_states import StateReader
    from trainers.evaluation.probing.probe_layers import probe_layers, probe_lines
    from trainers.report.task_table import align

    _require_sklearn()
    train, test = (_text_splits if "text" in named else _task_splits)(named, limit, seed)
    tuned = finetuned_score(parse_local(named["finetuned"], "finetuned"), test) if "finetuned" in named else None
    reader = StateReader.open(parse_local(str(options.model), "model"))
    layers = reader.choose_layers(named.get("layers", "all"), joined=True)
    found = probe_layers(reader, train, test, layers, kinds, seed, _tell)
    print("\n".join(printable(line) for line in align(probe_lines(found, tuned))))
    if options.output is not None:
        named_so = {"model": str(options.model), "task": train.task.name, "train": train.split, "test": test.split}
        if options.output.suffix == ".html":
            options.output.write_atomic(render_probes(**named_so, layers=found, finetuned=tuned).encode())
        else:
            more = {} if tuned is None else {"finetuned": {"run": named["finetuned"], "accuracy": tuned.plain()}}
            write_json(options.output, {**named_so, "layers": [each.plain() for each in found], **more})
        print(options.output)
    return 0


def _similarity(options: argparse.Namespace) -> int:
    named = _settings(options.settings, _COMPARED)
    if "task" not in named:
        raise ConfigError("task: give task=stsb, or task=FILE.yaml")
    if options.output is not None:
        _require_suffix(options.output, ".json")
    poolings = _poolings(named.get("pooling", "mean"))
    from gristmill.storage.store import write_json
    from trainers.evaluation.probing.hidden_states import StateReader
    from trainers.evaluation.probing.text_similarity import layer_similarities, similarity_lines
    from trainers.report.task_table import align
    from trainers.tasks.load_task import load_task
    from trainers.tasks.read_examples import read_examples
    from trainers.tasks.task_files import data_directory

    examples = read_examples(load_task(named["task"]), named.get("split", "dev"), data_directory(named.get("data")))
    reader = StateReader.open(parse_local(str(options.model), "model"))
    found = layer_similarities(reader, examples, reader.choose_layers(named.get("layers", "all")), poolings)
    print("\n".join(printable(line) for line in align(list(similarity_lines(found)))))
    if options.output is not None:
        facts = {"model": str(options.model), "task": examples.task.name, "split": examples.split}
        write_json(options.output, {**facts, "layers": [each.plain() for each in found]})
        print(options.output)
    return 0


def _heads(options: argparse.Namespace) -> int:
    import pyarrow.csv as arrow_csv
    import pyarrow.parquet as pq

    from gristmill.storage.store import write_json
    from trainers.evaluation.heads_page import render_heads
    from trainers.evaluation.probing.head_table import head_lines, measure_heads, plain_heads, pruning_lines
    from trainers.evaluation.suites.text_bits import SPLIT, text_task
    from trainers.report.task_table import align
    from trainers.tasks.read_examples import read_examples

    output = options.output
    if output is not None and output.suffix not in (".html", ".parquet", ".csv", ".json"):
        raise ConfigError(f"--output: got {output}, expected a name that ends in .html, .parquet, .csv or .json")
    if options.tokens < 1:
        raise ConfigError(f"--tokens: got {options.tokens}, allowed 1 or more")
    texts = read_examples(text_task(options.text), SPLIT, None)
    table, effects = measure_heads(parse_local(str(options.model), "model"), texts, options.tokens, _tell)
    print("\n".join(printable(line) for line in [*align(head_lines(table)), "", *align(pruning_lines(effects))]))
    if output is not None:
        if output.suffix == ".html":
            page = render_heads(str(options.model), str(options.text), table, effects)
            output.write_atomic(page.encode())
        elif output.suffix == ".json":
            write_json(output, {"model": str(options.model), **plain_heads(table, effects)})
        else:
            write = pq.write_table if output.suffix == ".parquet" else arrow_csv.write_csv
            output.write_atomic(lambda sink: write(table, sink))
        print(output)
    return 0


def _task_splits(named: Mapping[str, str], limit: int, seed: int) -> "tuple[Examples, Examples]":
    from trainers.evaluation.probing.probe_examples import probe_split
    from trainers.tasks.load_task import load_task
    from trainers.tasks.task_files import data_directory

    if "set" in named:
        raise ConfigError("set: belongs to text=FILE; leave it out")
    task, data = load_task(named["task"]), data_directory(named.get("data"))
    first = probe_split(task, named.get("train", "train"), data, limit)
    return first, probe_split(task, named.get("test", "dev"), data, limit)


def _text_splits(named: Mapping[str, str], limit: int, seed: int) -> "tuple[Examples, Examples]":
    from trainers.evaluation.probing.text_sets import TEXT_SETS, text_set
    from trainers.evaluation.suites.text_bits import SPLIT, text_task
    from trainers.tasks.read_examples import read_examples

    for name in ("train", "test", "data", "finetuned"):
        if name in named:
            raise ConfigError(f"{name}: belongs to task=NAME; leave it out")
    asked = next((each for each in TEXT_SETS if each == named.get("set")), None)
    if asked is None:
        raise ConfigError(f"set: got {named.get('set', 'none')}, allowed {', '.join(TEXT_SETS)}")
    texts = read_examples(text_task(parse_location(named["text"], field="text")), SPLIT, None)
    return text_set(asked, texts, limit, seed)


def _settings(given: Sequence[str], names: tuple[str, ...]) -> dict[str, str]:
    named, others = split_settings(given, names)
    if others:
        near = near_match(others[0].partition("=")[0], names)
        raise ConfigError(f"{others[0]!r}: expected {', '.join(f'{name}=' for name in names)}{near}")
    return named


def _poolings(named: str) -> "list[Pooling]":
    allowed = [name for name in _POOLINGS if name != "token"]
    if unknown := [name for name in named.split(",") if name not in allowed]:
        raise ConfigError(f"pooling: got {unknown[0]!r}, allowed {', '.join(allowed)}")
    return list(dict.fromkeys(named.split(",")))  # type: ignore[arg-type]


def _classifiers(named: str) -> "list[Classifier]":
    names = named.split(",")
    if unknown := [name for name in names if name not in _CLASSIFIERS]:
        raise ConfigError(f"classifier: got {unknown[0]!r}, allowed {', '.join(_CLASSIFIERS)}")
    return [name for name in _CLASSIFIERS if name in names]  # type: ignore[misc]


def _require_sklearn() -> None:
    from importlib.util import find_spec

    if find_spec("sklearn") is None:
        raise UserError(f"probe needs scikit-learn, which is not installed; run: {install_extra('probe')}")


def _whole(name: str, text: str, least: int) -> int:
    if not text.isdecimal() or int(text) < least:
        raise ConfigError(f"{name}: got {text}, allowed {least} or more")
    return int(text)


def _next_tokens(options: argparse.Namespace) -> int:
    from trainers.evaluation.next_tokens_page import render_next_tokens
    from trainers.evaluation.scoring.scorer import Scorer

    _require_suffix(options.output, ".html")
    if options.top < 1:
        raise ConfigError(f"--top: got {options.top}, allowed 1 or more")
    text = _text(options.text)
    scorer = Scorer.open(parse_local(str(options.model), "model"))
    choices = scorer.choose_tokens(text, options.top, _TOKENS)
    page = render_next_tokens(str(options.model), scorer.form.described, choices)
    options.output.write_atomic(page.encode())
    print(f"{options.output}: {len(choices):,} tokens")
    return 0


def _text(given: str) -> str:
    text = given
    if given.startswith("@"):
        path = parse_location(given[1:], field="--text")
        try:
            text = path.read_bytes().decode()
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(
                f"--text: {path} cannot be read as UTF-8 text ({type(error).__name__}); name another file"
            ) from None
    if not text.strip():
        raise ConfigError("--text: got no text; give one, or @FILE")
    return text


def _require_suffix(output: object, suffix: str) -> None:
    if not str(output).endswith(suffix):
        raise ConfigError(f"--output: got {output}, expected a name that ends in {suffix}")


def _tell(line: str) -> None:
    print(printable(line), file=sys.stderr, flush=True)
