"""Check whether the rules of a corpus file suit a source, given a sample of its documents.

In four cases, a rule from the literature is meaningless for a source:

- Its documents have a single line, so there are no lines to compare.
- An upper bound on length excludes most of its text.
- Its script does not separate words, so a bound on words is a bound on letters.
- It is HTML read as plain text, so tags add words and lines.

Notices never quote documents.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gristmill.storage.location import Location
from pipelines.contracts.manifest import load_step, read_schema, read_table, schema_facts
from pipelines.contracts.reads_text import ReadsText
from pipelines.planning.corpus import CorpusConfig, StepConfig
from pipelines.planning.plan import Plan
from pipelines.planning.source_check import SampleTally, sample_source
from pipelines.reading.entries.normalise import normalise
from pipelines.reading.sources.source import Source
from pipelines.reading.web.markup import has_markup
from pipelines.reading.web.page_process import holds_pages
from pipelines.stages.decide.filter import Filter, fails
from pipelines.stages.decide.rules import Rule, group_names, values_of
from pipelines.stages.materialise.funnel import sample_of
from pipelines.stages.measure.peer_signals import PeerSignals
from pipelines.stages.measure.quality_signals import QualitySignals
from pipelines.stages.measure.signal_columns import PEER_SIGNALS, SIGNALS

ONE_LINE = 0.9
"""A source counts as having no lines if at least this share of its documents with two or more sentences has a
single line. Of the first 1,000 documents: English Wikipedia 0.27, Stack Exchange 0.19, Chinese Wikipedia
0.17, news and technical texts 0.
"""
SEVERAL = 0.5
"""A source can count as having no lines only if at least this share of its documents has two or more sentences:
titles and short messages have one line because they have one sentence.
"""
MOST_BYTES = 0.5
"""An upper bound on length counts as dropping most of a source if it drops more than this share of its bytes."""
UNSEPARATED = 0.5
"""Words count as not separated if more than this share of them follows another word directly. In a script
without spaces every letter is a word, so the share is 0.85 in Chinese Wikipedia; it is 0 in English and
Korean, which separate words by spaces.
"""
MARKUP = 0.2
"""A source counts as HTML if more than this share of its documents contains the end tag of an HTML block. Of
3,000 documents: Stack Exchange 0.98, technical documents 0.005, Wikipedia, news, forums and laws below 0.003.
"""

_BOTH = ("", "_datatrove")
_C4_SENTENCES = tuple(f"c4_sentences_{variant}" for variant in ("paper", "tfds", "datatrove"))
LINES = frozenset((
    *(f"{name}{suffix}" for suffix in _BOTH for name in (
        "bullet_line_ratio", "ellipsis_line_ratio", "dup_line_ratio", "dup_line_char_ratio", "terminal_line_ratio",
        "short_line_ratio")),
    *_C4_SENTENCES, "dup_line_char_ratio_fineweb_datatrove", "newline_to_word_ratio_datatrove", "max_line_chars",
    "mean_line_chars",
))  # fmt: skip
"""Signals of the lines of a document, except their number. Signals of duplicate paragraphs are not among them,
because duplicate paragraphs are rare in any source.
"""
LENGTHS = frozenset(
    ("n_bytes", "n_chars", "n_lines", "n_paragraphs", "n_sentences", "word_count", "word_count_datatrove")
)
"""Signals that measure the length of a document."""
WORDS = frozenset((
    *(f"{name}{suffix}" for suffix in _BOTH for name in (
        "word_count", "mean_word_length", "hash_to_word_ratio", "ellipsis_to_word_ratio", "alpha_word_ratio", "stop_word_count")),
    *(f"top_{n}gram_char_ratio_datatrove" for n in (2, 3, 4)), *(f"dup_{n}gram_char_ratio_datatrove" for n in range(5, 11)),
    *_C4_SENTENCES, "short_line_ratio", "short_line_ratio_datatrove", "newline_to_word_ratio_datatrove", "symbol_to_word_ratio",
    "stop_word_ratio", "unique_word_ratio", "unigram_entropy",
))  # fmt: skip
"""Signals whose published bounds assume words between spaces. The n-gram ratios without `_datatrove` are not
among them: they weight the letters of scripts without spaces (pipelines/kernels/text/units.py). The ratio of
short lines is among them: its bound assumes 30 Latin letters, which say less than 30 Chinese ones.
"""


@dataclass(frozen=True)
class Sample:
    """Sampled documents of one source; each table has one row per document.

    `columns` holds `text_bytes` and, for a built corpus, `drop_step`, `markup` and columns that its steps
    wrote. `signals` maps each text that was measured, such as `text` or `edited_text`, to its
    `quality_signals` columns, without a prefix, and to its `peer_signals` columns if they were measured.
    """

    title: str
    columns: pa.Table
    signals: Mapping[str, pa.Table]


@dataclass(frozen=True)
class Test:
    """A rule of a filter, or a stage that judges lines or words, applied to one source.

    `name` is the rule's reason, or the step's name for a stage. `signal` is the tested column without its
    prefix, or empty for a stage, and `text` the text that is judged. `kinds` says which of `lines`, `lengths`
    and `words` the test depends on. `earlier` are the names of the earlier steps.
    """

    step: str
    name: str
    signal: str
    text: str
    kinds: frozenset[str]
    rule: Rule | None
    earlier: tuple[str, ...]


def measure_texts(config: CorpusConfig, texts: Sequence[str]) -> Sample:
    """Measure the first texts of a source whose corpus is not built yet, and return them as a sample. The
    texts are normalised but not edited, so `edited_text` gets the signals of `text`.
    """
    stored = pa.array([normalise(text)[0].decode() for text in texts], pa.large_string())
    docs = pa.table({"text": stored})
    measured = QualitySignals().annotate(docs)
    if any(isinstance(entry.stage, PeerSignals) for entry in config.steps):
        measured = _beside(measured, PeerSignals().annotate(docs))
    readings = [entry.stage.text for entry in config.steps if isinstance(entry.stage, ReadsText)]
    columns = pa.table({"text_bytes": pc.binary_length(stored)})
    return Sample(f"its first {len(texts):,} documents", columns, dict.fromkeys(readings, measured))


def published_sample(config: CorpusConfig, source: str, table: pa.Table) -> Sample:
    """Return the sampled documents of one source. `table` is the sample of all sources that the funnel of the
    built corpus has written.
    """
    rows = table.filter(pc.equal(table["source"], source))
    ours, peers = (_published_signals(config, source, rows, kind) for kind in (QualitySignals, PeerSignals))
    signals = {text: _beside(table, peers[text]) if text in peers else table for text, table in ours.items()}
    return Sample(f"{rows.num_rows:,} sampled documents", rows, signals)


def _published_signals(
    config: CorpusConfig, source: str, rows: pa.Table, kind: type[QualitySignals | PeerSignals]
) -> dict[str, pa.Table]:
    signals = {}
    for entry in config.steps:
        names = entry.stage.writes().names
        if isinstance(entry.stage, kind) and _covers(entry, source) and {*names} <= {*rows.column_names}:
            signals[entry.stage.text] = rows.select(names).rename_columns(kind().writes().names)
    return signals


def _beside(left: pa.Table, right: pa.Table) -> pa.Table:
    return pa.table([*left.columns, *right.columns], names=[*left.column_names, *right.column_names])


def find_tests(config: CorpusConfig, source: str) -> list[Test]:
    """Return the tests that apply to a source and may be meaningless for it, in the order of the steps: tests
    of lines, upper bounds on length, and tests that assume words between spaces.

    A rule does not count as a test of words if its bounds are already adjusted to the source or to groups of
    documents (`_is_adjusted`).
    """
    tests: list[Test] = []
    signals: dict[str, tuple[str, str]] = {}  # column: (signal, text)
    earlier: list[str] = []
    for entry in config.steps:
        stage = entry.stage
        if _covers(entry, source):
            if isinstance(stage, QualitySignals | PeerSignals):
                names = SIGNALS.names if isinstance(stage, QualitySignals) else PEER_SIGNALS.names
                signals |= {f"{stage.prefix}{name}": (name, stage.text) for name in names}
            elif isinstance(stage, Filter):
                tests.extend(_tests_of_filter(entry, stage, source, signals, tuple(earlier)))
            elif isinstance(stage, ReadsText):
                tests.append(Test(entry.name, entry.name, "", stage.text, stage.judges(), None, tuple(earlier)))
        earlier.append(entry.name)
    return [test for test in tests if test.kinds]


def _tests_of_filter(
    entry: StepConfig, stage: Filter, source: str, signals: Mapping[str, tuple[str, str]], earlier: tuple[str, ...]
) -> Iterator[Test]:
    for listed in stage.rules:
        for rule in listed.expand():
            if rule.signal and rule.signal in signals and source in rule.when.get("source", (source,)):
                signal, text = signals[rule.signal]
                kinds = {"lines"} if signal in LINES else set()
                kinds |= {"lengths"} if signal in LENGTHS and rule.at_most is not None else set()
                is_cap = signal in LENGTHS and rule.at_least is None  # no matter what it counts
                words = signal in WORDS and not is_cap and not _is_adjusted(listed, entry, source)
                kinds |= {"words"} if words else set()
                yield Test(entry.name, rule.reason(), signal, text, frozenset(kinds), rule, earlier)


def _is_adjusted(listed: Rule, entry: StepConfig, source: str) -> bool:
    if listed.mappings() or listed.quantiles() or any(column != "source" for column in listed.when):
        return True
    return listed.rules is None and (listed.when.get("source") == (source,) or entry.sources == (source,))


def fit_of_plan(plan: Plan, root: Location, tallies: Mapping[str, SampleTally]) -> list[str]:
    """Return the notices of a plan. They are based on the published columns if the corpus is built, otherwise
    on the first documents of each source.

    `tallies` maps the names of sources that were already sampled to their samples; the others are sampled
    here.
    """
    if load_step(root, plan.step("funnel").directory) is not None:
        return published_notices(plan, root)
    notices: list[str] = []
    for source in plan.config.sources:
        tests = find_tests(plan.config, source.name)
        tally = tallies.get(source.name) or sample_source(source, plan.inventories[source.name].files)
        if tally.texts:
            markup = has_markup(pa.array(tally.texts, pa.large_string()))
            notices.extend(markup_notices(source, tests, markup, f"its first {len(tally.texts):,} documents"))
            if tests:
                notices.extend(fit_notices(source.name, tests, measure_texts(plan.config, tally.texts)))
    return notices


def published_notices(plan: Plan, root: Location) -> list[str]:
    """Return the notices of a corpus, from the documents that its funnel sampled. There are none if the
    corpus is not built.
    """
    config, name = plan.config, plan.step("funnel").directory
    directory = root / name
    funnel = load_step(root, name)
    if funnel is None:
        return []
    record = sample_of(funnel)
    schema = read_schema(directory, record)
    table = read_table(directory, record, schema.names, schema_facts(schema))
    notices: list[str] = []
    for source in config.sources:
        tests, sample = find_tests(config, source.name), published_sample(config, source.name, table)
        notices.extend(markup_notices(source, tests, sample.columns["markup"], sample.title))
        notices.extend(fit_notices(source.name, tests, sample))
    return notices


def markup_notices(
    source: Source, tests: Sequence[Test], markup: pa.Array | pa.ChunkedArray, title: str
) -> Iterator[str]:
    """Yield a notice if a source holds HTML that is read as text. `markup`, bool [documents], is true for the
    sampled documents that have block tags; `title` describes the sample.
    """
    count = pc.sum(markup).as_py() or 0
    if not holds_pages(source) and source.text_is == "text" and count > MARKUP * len(markup):
        steps = list(dict.fromkeys(test.step for test in tests if "lines" in test.kinds))
        judged = f"; {_listed(steps)} would judge lines of tags and drop or empty most documents" if steps else ""
        remedy = "read it with `text_is: html`, or with `text_is: html_page` if every text is a whole page"
        if source.format in ("text", "markdown"):
            remedy = "read files that are pages with `format: html`"
        yield (
            f"{source.name} holds HTML, which is read as text, tags included: {count:,} of {title} have block tags such as "
            f"</p>{judged}; {remedy}"
        )


def fit_notices(source: str, tests: Sequence[Test], sample: Sample) -> Iterator[str]:
    """Yield notices about the tests that are meaningless for a source: first tests of lines, then of lengths,
    then of words.
    """
    yield from _line_notices(source, tests, sample)
    yield from _length_notices(source, tests, sample)
    yield from _word_notices(source, tests, sample)


def _line_notices(source: str, tests: Sequence[Test], sample: Sample) -> Iterator[str]:
    found: dict[tuple[str, int, int], list[str]] = {}
    for test, signals, _, judged in _judging(tests, sample, "lines"):
        several = _column(signals, "n_sentences") >= 2
        alone = several & (_column(signals, "n_lines") == 1) & judged
        if several.sum() >= max(1, SEVERAL * len(several)) and alone.sum() >= ONE_LINE * several.sum():
            found.setdefault((test.step, int(alone.sum()), int(several.sum())), []).append(test.name)
    for (step, single, several_count), names in found.items():
        yield (
            f"{step}: {source} has no lines to judge: {single:,} of {several_count:,} documents with two or more sentences have "
            f"a single line ({sample.title}). {_listed(names)} would judge each of them by that line; leave {source} out, by "
            "`sources` of the step or `when: {source: [...]}` of the rule"
        )


def _length_notices(source: str, tests: Sequence[Test], sample: Sample) -> Iterator[str]:
    for test, signals, columns, judged in _judging(tests, sample, "lengths"):
        size = _column(columns, "text_bytes")
        groups = _groups(test.rule, source, columns) if test.rule is not None else None
        if test.rule is None or (test.rule.per and groups is None):
            continue
        cap = replace(test.rule, at_least=None, one_of=(), none_of=(), null="keep")
        beyond = np.asarray(fails(cap, values_of(signals[test.signal]), groups), bool) & judged
        share = size[beyond].sum() / max(size.sum(), 1)
        if share > MOST_BYTES:
            bound = "its bound" if cap.mappings() else f"{cap.bound('at_most'):,g}"
            yield (
                f"{test.step}: {test.name}, at most {bound}, would drop {share:.0%} of the bytes of {source} ({beyond.sum():,} "
                f"of {sample.title}). Leave {source} out by `when: {{source: [...]}}` of the rule, give it a bound of its own "
                f"(`per: source, at_most: {{{source}: ..., default: ...}}`), or split its documents before the build"
            )


def _word_notices(source: str, tests: Sequence[Test], sample: Sample) -> Iterator[str]:
    found: dict[tuple[str, bool, float], list[str]] = {}
    for test, signals, _, judged in _judging(tests, sample, "words"):
        share = unseparated_share(signals, judged)
        if share > UNSEPARATED:
            found.setdefault((test.step, test.rule is None, share), []).append(test.name)
    for (step, is_stage, share), names in found.items():
        judges = (
            f"The bounds of {_listed(names)} are for words between spaces; give languages bounds of their own (`when: "
        )
        judges += "{language: [...]}`, `per: language`), as corpora_configs/multilingual.yaml does, or"
        if is_stage:
            judges = "Its tests are for lines of words between spaces, with Latin marks at their ends;"
        yield (
            f"{step}: {source} does not separate its words: {share:.0%} of what counts as a word, a letter there, follows "
            f"another directly ({sample.title}). {judges} leave {source} out by `sources` of the step"
        )


def unseparated_share(signals: pa.Table, judged: np.ndarray) -> float:
    """Return a lower bound on the share of all words that are in judged documents and follow another word
    with no separator in between. `judged` is a mask, bool [documents].

    If separators stood between all n words of a document, at least n - 1 of its characters would be outside
    words. Each character fewer than n - 1 means one word without a separator before it.
    """
    words = _column(signals, "word_count")
    outside = _column(signals, "n_chars") - words * np.nan_to_num(_column(signals, "mean_word_length"))
    missing = np.maximum(np.rint(words - 1 - outside), 0)
    return float(missing[judged].sum() / max(words.sum(), 1))


def _judging(tests: Sequence[Test], sample: Sample, kind: str) -> Iterator[tuple[Test, pa.Table, pa.Table, np.ndarray]]:
    """Yield (test, signals, columns, judged) for each test of this kind whose columns the sample has.
    `signals` and `columns` have a row for each document that reaches the test: its text was measured, and no
    earlier step dropped it. `judged`, bool [rows], says which of these documents meet the `when` of the
    test's rule.
    """
    names = {*sample.columns.column_names}
    for test in tests:
        when = {} if test.rule is None else {name: v for name, v in test.rule.when.items() if name != "source"}
        if kind not in test.kinds or test.text not in sample.signals or not {*when} <= names:
            continue
        signals = sample.signals[test.text]
        if test.signal and test.signal not in signals.column_names:
            continue
        reach = pc.is_valid(signals["n_lines"])
        if "drop_step" in names:
            before = pc.is_in(sample.columns["drop_step"], value_set=pa.array(test.earlier, pa.string()))
            reach = pc.and_(reach, pc.invert(before))
        signals, columns = signals.filter(reach), sample.columns.filter(reach)
        judged = np.ones(columns.num_rows, bool)
        for name, values in when.items():
            judged &= np.asarray(pc.is_in(columns[name], value_set=pa.array(values, columns[name].type)), bool)
        yield test, signals, columns, judged


def _groups(rule: Rule, source: str, columns: pa.Table) -> pa.Array | None:
    if rule.per == "source":
        return pa.array([source] * columns.num_rows, pa.string())
    return group_names(columns[rule.per]) if rule.per in columns.column_names else None


def _column(table: pa.Table, name: str) -> np.ndarray:
    """Return a column of numbers as float64; NaN for nulls."""
    return np.asarray(table[name].cast(pa.float64()).to_numpy(zero_copy_only=False))


def _covers(entry: StepConfig, source: str) -> bool:
    return entry.sources is None or source in entry.sources


def _listed(names: Sequence[str], most: int = 4) -> str:
    shown = list(names[:most]) + ([f"{len(names) - most} more"] if len(names) > most else [])
    return " and ".join([", ".join(shown[:-1]), shown[-1]] if len(shown) > 1 else shown)
