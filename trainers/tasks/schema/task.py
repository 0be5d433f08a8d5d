"""The task file, which defines a task: its kind, where its data files are, how they are read, and how
predictions are scored.

    my_task.yaml -> Task -> read_examples -> Examples -> inputs of a model
                      |                          |
                      +--- metrics <--- Predictions

A Task also describes the layout of its data files; `elsewhere` lists alternative layouts.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Literal

from gristmill.config import ADDED, near_match
from trainers.tasks.schema.metric_names import METRIC_KINDS, WRITTEN_METRICS
from trainers.tasks.schema.task_prompt import Prompt, fields_of

TaskKind = Literal["classify", "regress", "tag", "span", "choose", "generate"]
"""The kinds of tasks that a model can be trained on."""
AnyKind = Literal["classify", "regress", "tag", "span", "choose", "generate", "minimal_pairs", "facts", "text"]
Format = Literal[
    "jsonl", "tsv", "csv", "parquet", "conll", "conllu", "squad", "lines", "json", "documents", "trees", "multirc",
    "record", "dialogues", "webquestions", "generated",
]  # fmt: skip
Role = str | int | tuple[str | int, ...]

# {kind: (required columns, optional columns)}
ROLES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "classify": (("text", "label"), ("text_b", "id", "group")),
    "regress": (("text", "label"), ("text_b", "id")),
    "tag": (("words", "tags"), ("id",)),
    "span": (("question", "passage", "answers"), ("id",)),
    "choose": (("text", "candidates", "label"), ("passage", "id", "accepted")),
    "generate": (("text", "target"), ("text_b", "id")),
    "minimal_pairs": (("good", "bad"), ("subtask", "field", "id")),
    "facts": (("subject", "target"), ()),
    "text": (("text",), ("id",)),
}
GOLD = {
    "classify": "label",
    "regress": "label",
    "tag": "tags",
    "span": "answers",
    "choose": "label",
    "generate": "target",
}
_LISTS = ("candidates", "target", "accepted")
_BIO = re.compile(r"O|[BI]-.+")
_SUFFIXES: dict[str, Format] = {
    ".jsonl": "jsonl", ".tsv": "tsv", ".csv": "csv", ".parquet": "parquet", ".conll": "conll", ".conllu": "conllu",
}  # fmt: skip


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise ValueError(message)


@dataclass(frozen=True, kw_only=True)
class Layout:
    """A layout of a data set's files: where they are, their format, and which column has which role. A data
    set may have several layouts, because people have converted it to other formats.

    `files` gives one file name per split, or several names, which are tried in order. A relative name is
    searched for in each of `folders`, first below `data=DIR` (default: `$GRISTMILL_TASKS`), then, for your
    own task file, below the directory of that file. A URL, or a path that begins with `/` or `~`, is not
    relative. Each name is also tried with `.gz` appended. `*` matches several files, which are read in order
    of their names.

    `columns` maps roles to columns. A number, from 0, is a column of a `conll` file or of a file without a
    `header`; `a.b` is a field inside a field; `{a}: {b}` composes a text from several columns; a list gives
    one value per column (only for `candidates`, `target` and `accepted`). The roles of each kind are:

    - classify: `text`, `text_b`, `label`, `group` (examples of a group count as one in `question_accuracy`)
    - regress: `text`, `text_b`, `label` (a number)
    - tag: `words`, `tags`
    - span: `question`, `passage`, `answers` (a list of {text, answer_start}, or {text: [...], answer_start:
      [...]})
    - choose: `text`, `candidates`, `label` (number of the right candidate, from 0), `passage`, `accepted`
      (texts)
    - generate: `text`, `text_b`, `target` (a text or a list of accepted texts)
    - minimal_pairs: `good`, `bad`, and `subtask` and `field`, by which scores are broken down; only for `evaluate`
    - facts: `subject`, `target`; each file is a relation, and `relations.jsonl` in the same folder has the statements
      of all relations (`relation`, `label`, `template`, `paraphrases`, with `[X]` for the subject and `[Y]` for the
      object); only for `evaluate`
    - text: `text`; only for `evaluate`

    All kinds except facts also have the role `id`; without it, an example's id is its index in the split.

    `format` may be left out if the suffix of the files names it (jsonl, tsv, csv, parquet, conll or conllu).
    Formats that need an explanation are:

    - `tsv` has no quoting, and `csv` is quoted as in RFC 4180.
    - `json` is one list of objects. `squad` is the JSON of SQuAD 1.1 and 2.0, which needs no `columns`; `multirc`,
      `record` and `webquestions` are the JSON of those data sets. `dialogues` has one example per reply (`history`,
      `reply`).
    - `conll` has one word per line and a blank line between sentences; `conllu` is the CoNLL-U format of Universal
      Dependencies, with the extra columns `sent_id` (the id of the sentence), `feats.NAME` (a feature of each word, or
      `none`) and `depth` (arcs to the root, at most 8).
    - `lines` has one example per line: either parallel files, whose names contain `{column}`, or lines that are
      split by `pattern`, a regular expression with named groups. Without a pattern, the whole line is the
      column `line`.
    - `documents` has one example per file (columns `text`, `folder`, `name`).
    - `trees` are the bracketed trees of the Stanford Sentiment Treebank (`text`, `label`).
    - `generated` rows need no file: the file name is the name of a generator
      (`trainers/tasks/formats/generated_rows.py`).

    With `header: false`, tables have no row of column names. `encoding` is the encoding of text files.
    `rename` maps the labels in these files to the labels of the task or, for `choose`, to candidate numbers;
    in minimal pairs, it maps names of subtasks and fields. `scheme` is the scheme of the entity tags in the
    files, which are converted to BIO; the default is `bio` if `entity_f1` is measured. `unlabelled` lists the
    splits whose gold is hidden: they can be predicted but not scored. `where` maps columns to lists of
    values; only rows that have one of these values in each of the columns are kept. A table row with the
    wrong number of columns is an error; with `incomplete_rows: skip`, such rows, and rows with an empty or
    missing text, candidate, label, tag or target, are skipped and counted.
    """

    files: dict[str, str | tuple[str, ...]]
    columns: dict[str, Role] | None = None
    format: Format | None = None
    folders: tuple[str, ...] = ("",)
    header: bool = True
    encoding: str = "utf-8"
    pattern: str | None = None
    scheme: Literal["bio", "iob1", "bioes"] | None = None
    rename: dict[str, str] | None = None
    unlabelled: tuple[str, ...] = ()
    where: dict[str, tuple[str, ...]] | None = None
    incomplete_rows: Literal["refuse", "skip"] = "refuse"

    def check(self) -> None:
        """Validate the fields that do not depend on the kind of task."""
        _require(bool(self.files), "files: got none, expected a file for each split, such as {train: train.jsonl}")
        for split in self.files:
            _require(
                split.isidentifier(), f"files: got the split {split!r}, expected a name such as train, dev or test"
            )
        unknown = [split for split in self.unlabelled if split not in self.files]
        _require(
            not unknown, f"unlabelled: got {', '.join(unknown)}, expected splits of files ({', '.join(self.files)})"
        )
        for split in self.files:
            for name in self.names(split):
                form = self.format_of(name)
                _require(form is not None, f"format: missing, and the suffix of {name} names none; {_formats()}")
        if self.pattern is not None:
            self._check_pattern(self.pattern)
        for role, column in (self.columns or {}).items():
            self._check_column(role, column)

    def _check_pattern(self, pattern: str) -> None:
        _require(self.format == "lines", f"pattern: {self.format} has none; only format lines uses one")
        try:
            groups = re.compile(pattern).groupindex
        except re.error as error:
            raise ValueError(f"pattern: not a regular expression: {error}") from None
        _require(bool(groups), "pattern: got no named group, expected one such as (?P<text>.*)")

    def _check_column(self, role: str, column: Role) -> None:
        several = isinstance(column, tuple)
        _require(not several or role in _LISTS, f"columns.{role}: got a list, expected one column")
        _require(column != (), f"columns.{role}: got an empty list, expected columns")
        for name in column if isinstance(column, tuple) else (column,):
            if isinstance(name, int):
                _require(name >= 0, f"columns.{role}: got {name}, allowed 0 and more")
                formats = {self.format_of(file) for split in self.files for file in self.names(split)}
                _require(
                    formats == {"conll"} or not self.header,
                    f"columns.{role}: got the number {name}; a file with a header names its columns; use a "
                    "name, or set header: false",
                )
            else:
                _require(bool(name), f"columns.{role}: got an empty name")

    @property
    def roles(self) -> dict[str, Role]:
        """The column of each role. `squad` files have fixed fields, so `columns` may be left out for them."""
        if self.columns is None and all(
            self.format_of(name) == "squad" for split in self.files for name in self.names(split)
        ):
            return _SQUAD
        return self.columns or {}

    def names(self, split: str) -> tuple[str, ...]:
        """Return the file names to try for a split, in order."""
        names = self.files[split]
        return (names,) if isinstance(names, str) else names

    def format_of(self, name: str) -> Format | None:
        """Return `format` if it is set, otherwise the format named by the file's suffix, ignoring `.gz`."""
        if self.format is not None:
            return self.format
        name = name.removesuffix(".gz")
        return next((form for suffix, form in _SUFFIXES.items() if name.endswith(suffix)), None)


_SQUAD: dict[str, Role] = {"question": "question", "passage": "context", "answers": "answers", "id": "id"}


@dataclass(frozen=True)
class Templates:
    """The templates that turn an example into an input text and a target text (T5's are in Raffel et al.,
    2020, appendix D).

    Both templates contain names in braces. `input` may contain the roles of the task's texts (`{text}`,
    `{text_b}`, `{question}`, `{passage}`), `{candidates}` (all candidates, each with its letter) and
    `{words}` (the words to tag). `target` contains one of `{label}`, `{score}`, `{answer}`, `{tags}`,
    `{candidate}` and `{target}`. The field `words` maps each label to the text that replaces it in the
    target. Scores are rounded to multiples of `step`; the default, 0.2, is T5's step for STS-B. `no_answer`
    is the target for a question without an answer.
    """

    input: str
    target: str
    words: dict[str, str] | None = None
    step: float = 0.2
    no_answer: str = "unanswerable"

    def check(self) -> None:
        """Validate that `step` is positive and that no two labels have the same word, ignoring white space
        around words.
        """
        _require(self.step > 0, f"step: got {self.step}, allowed above 0")
        words = [word.strip() for word in (self.words or {}).values()]
        _require(len(set(words)) == len(words), "words: two labels have the same word; give each its own")


@dataclass(frozen=True, kw_only=True)
class Task(Layout):
    """A task: its kind, files, labels and metrics.

    `labels` are spelled as in the files, or as `rename` spells them, and numbered from 0 in the order given.
    `positive` is the label that `f1` scores, by default the second of two. All `metrics` are computed. The
    checkpoint is selected by the first or, if the model answers in text, by the loss. `range` gives the
    lowest and the highest value of a regression's labels. With `no_answer`, a question may have no answer in
    its passage. In fine-tuning, a training example that also occurs in a split with known gold is an error;
    with `leak: report`, such examples are accepted and counted. `templates` turn examples into input and
    target texts for models that are trained to write their answers. `elsewhere` lists alternative layouts of
    the files, which are tried after the task's own.

    `name` defaults to the file's name without its suffix. `suite` is the suite that the task belongs to.
    `about` says what the task is, and `source` says where its definition comes from. `folder` is the
    directory of your own task file, in which its data files are searched for. `prompt` is the prompt that
    `evaluate` gives to a model that was not trained on the task. Raise `version` with every change that
    affects scores: results of different versions are not compared.
    """

    kind: AnyKind
    metrics: tuple[str, ...]
    labels: tuple[str | int | bool, ...] = ()
    positive: str | None = None
    range: tuple[float, ...] | None = None
    no_answer: bool = False
    leak: Literal["refuse", "report"] = "refuse"
    templates: Templates | None = None
    elsewhere: tuple[Layout, ...] = ()
    name: str = ""
    suite: str | None = None
    about: str = ""
    source: str = ""
    folder: str | None = None
    prompt: Prompt | None = field(default=None, metadata=ADDED)
    version: int = field(default=1, metadata=ADDED)

    @property
    def layouts(self) -> Iterator[tuple[str, Layout]]:
        """The task's own layout and those of `elsewhere`, as pairs (prefix of field names in messages,
        layout). A layout without columns inherits those of the task.
        """
        yield "", self
        for number, layout in enumerate(self.elsewhere):
            own = layout if layout.columns is not None else replace(layout, columns=self.columns)
            yield f"elsewhere[{number}].", own

    @property
    def splits(self) -> tuple[str, ...]:
        """The splits for which at least one layout names files."""
        return tuple(dict.fromkeys(split for _, layout in self.layouts for split in layout.files))

    @property
    def label_names(self) -> tuple[str, ...]:
        """The labels as text; booleans are `true` and `false`."""
        return tuple(str(label).lower() if isinstance(label, bool) else str(label) for label in self.labels)

    @property
    def positive_label(self) -> int:
        """The index of the label that `f1` scores."""
        return self.label_names.index(self.positive) if self.positive is not None else 1

    def check(self) -> None:
        """Validate all fields, including those that depend on the kind of task."""
        super().check()
        _require(self.version >= 1, f"version: got {self.version}, allowed 1 and more")
        for place, layout in self.layouts:
            self._check_roles(place, layout)
        self._check_labels()
        self._check_metrics()
        _require(self.kind == "span" or not self.no_answer, f"no_answer: {self.kind} has none; it belongs to span")
        _require(self.range is None or self.kind == "regress", f"range: {self.kind} has none; it belongs to regress")
        _require(
            self.range is None or (len(self.range) == 2 and self.range[0] < self.range[1]),
            f"range: got {list(self.range or ())}, expected the lowest and the highest number",
        )
        if self.templates is not None:
            self._check_templates(self.templates)
        if self.prompt is not None:
            self.prompt.check_kind(self.kind, self.label_names)
            self._check_generation()

    def _check_generation(self) -> None:
        if self.prompt is None or self.prompt.generation is None:
            return
        _require(
            not self.no_answer,
            "prompt.generation: not with no_answer: a model that was not trained on the task cannot say that there is none",
        )
        measured = [name for name in self.metrics if name in WRITTEN_METRICS]
        _require(
            bool(measured),
            f"metrics: got {', '.join(self.metrics)}; what a model writes is scored by {', '.join(WRITTEN_METRICS)}",
        )

    def _check_roles(self, place: str, layout: Layout) -> None:
        needed, optional = ROLES[self.kind]
        for role in layout.roles:
            near = near_match(role, [*needed, *optional])
            _require(role in (*needed, *optional), f"{place}columns.{role}: {self.kind} has no such column{near}")
        hidden = set(layout.unlabelled) == set(layout.files)
        missing = [role for role in needed if role not in layout.roles and not (hidden and role == GOLD.get(self.kind))]
        _require(not missing, f"{place}columns: {', '.join(missing)} missing; {self.kind} needs {', '.join(needed)}")
        _require(layout.scheme is None or self.kind == "tag", f"{place}scheme: {self.kind} has none; it belongs to tag")
        for label in (layout.rename or {}).values():
            known = not self.labels or label in self.label_names
            _require(
                known,
                f"{place}rename: got {label!r}, expected a label of the task{near_match(label, self.label_names)}",
            )

    def _check_labels(self) -> None:
        names = self.label_names
        if self.kind in ("classify", "tag"):
            least = 2 if self.kind == "classify" else 1
            _require(len(names) >= least, f"labels: got {len(names)}, {self.kind} needs {least} or more")
        else:
            _require(not names, f"labels: {self.kind} has none; leave them out")
        repeated = {name for name in names if names.count(name) > 1}
        _require(not repeated, f"labels: {', '.join(sorted(repeated))} occurs twice")
        _require(
            self.positive is None or self.positive in names,
            f"positive: got {self.positive!r}, expected a label{near_match(str(self.positive), names)}",
        )

    def _check_metrics(self) -> None:
        _require(bool(self.metrics), "metrics: got none; checkpoints are picked by the first")
        allowed = [name for name, kinds in METRIC_KINDS.items() if self.kind in kinds]
        for number, name in enumerate(self.metrics):
            near = near_match(name, allowed)
            _require(name in METRIC_KINDS, f"metrics[{number}]: got {name!r}, no such metric of {self.kind}{near}")
            _require(
                name in allowed,
                f"metrics[{number}]: {name} does not measure {self.kind}; allowed: {', '.join(allowed)}",
            )
        binary = self.kind != "classify" or len(self.labels) == 2 or self.positive is not None
        _require(
            "f1" not in self.metrics or binary,
            "metrics: f1 needs two labels or `positive`; otherwise use macro_f1 or micro_f1",
        )
        if "entity_f1" in self.metrics:
            odd = next((name for name in self.label_names if not _BIO.fullmatch(name)), None)
            _require(odd is None, f"metrics: entity_f1 needs labels O, B-TYPE and I-TYPE, got {odd!r}")
        grouped = all("group" in layout.roles for _, layout in self.layouts)
        _require(
            "question_accuracy" not in self.metrics or grouped, "metrics: question_accuracy needs the column group"
        )

    def _check_templates(self, templates: Templates) -> None:
        _require(self.kind in GOLD, f"templates: {self.kind} has none; leave them out")
        known = ("text", "text_b", "question", "passage", "words")
        texts = [role for role in sum(ROLES[self.kind], ()) if role in known]
        texts += ["candidates"] * (self.kind == "choose")
        golds = {"classify": "label", "regress": "score", "tag": "tags", "span": "answer", "choose": "candidate"}
        gold = golds.get(self.kind, "target")
        for place, template, allowed in (
            ("input", templates.input, texts),
            ("target", templates.target, [gold]),
        ):
            for name in fields_of(template):
                _require(name in allowed, f"templates.{place}: got {{{name}}}, {self.kind} allows {', '.join(allowed)}")
            _require(
                bool(fields_of(template)), f"templates.{place}: got no name in braces; allowed: {', '.join(allowed)}"
            )
        _require(
            len(fields_of(templates.target)) == 1, f"templates.target: got several names, expected {{{gold}}} once"
        )
        if templates.words is not None:
            _require(self.kind == "classify", f"templates.words: {self.kind} has no labels; leave them out")
            missing = set(self.label_names) ^ set(templates.words)
            _require(not missing, f"templates.words: {', '.join(sorted(missing))}: expected a word for each label")


def _formats() -> str:
    return f"expected one of {', '.join(Format.__args__)}"  # type: ignore[attr-defined]
