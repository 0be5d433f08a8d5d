"""Write docs/corpus_file.md from the dataclasses that parse corpus files: `python docs/corpus_file.py`."""

import dataclasses
import inspect
import re
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from gristmill.json_schema import field_notes
from gristmill.storage.remote import Remote
from pipelines.classifiers.column_training import BoostedKnobs, RegressionKnobs
from pipelines.classifiers.fasttext_training import FastTextKnobs
from pipelines.classifiers.train_classifier import ClassifierConfig
from pipelines.classifiers.train_columns import ColumnClassifierConfig
from pipelines.classifiers.train_embeddings import EmbeddingClassifierConfig
from pipelines.classifiers.train_judged import JudgedClassifierConfig
from pipelines.contracts.given_split import FieldSplit, IdSplit, WholeSplit
from pipelines.planning.corpus import CorpusConfig
from pipelines.reading.sources.record_field import RecordField
from pipelines.reading.sources.record_text import RecordText
from pipelines.reading.sources.registry import FORMATS
from pipelines.reading.sources.source import Source
from pipelines.stages import STAGES
from pipelines.stages.decide.exclude import Exclude, ExclusionList
from pipelines.stages.decide.patterns import PatternRule, Patterns
from pipelines.stages.decide.rules import RULE_SETS, Rule
from pipelines.stages.materialise.group_by import GroupBy
from pipelines.stages.materialise.shards import Shards
from pipelines.stages.measure.decontaminate import Decontaminate
from pipelines.stages.measure.evaluation_sets import EvaluationSet
from pipelines.stages.measure.record_fields import RecordFields

HEAD = """\
# The corpus file

One YAML file describes one corpus: where its texts come from and what happens to them. This page is generated from the
dataclasses that parse it (`python docs/corpus_file.py`); a test fails when they differ.

Precedence: defaults, then the file, then `a.b=value` arguments. `steps.language.models=[PATH]` reaches the step with the key or
the name `language`; `sources.web.encoding=latin-1` the source named `web`; `steps.filter[0].at_least=0.7` the first rule of the
filter. An unknown field, a wrong type and a value out of range are errors that name the file, the path, the value and the nearest
allowed name.

Relative paths are relative to the working directory. `~` and `$HOME` at the start of a path are expanded, here and in arguments;
another variable there is an error. The process that reads the file expands them, once for all workers: in a job on a cluster that
is the driver, whose home may be another than yours.
"""

STEPS = """\
## steps

A list. Each entry is `{STAGE: knobs}`; beside the stage's key may stand:

| field | type | meaning |
|---|---|---|
| `name` | text | name of the step, to tell several steps of one stage apart; default: the stage's name |
| `sources` | list of text | limit the step to these sources; for the others its columns are null |
| `where` | text | name of an earlier step: annotate only documents that no step up to it dropped |

Measuring stages write columns for every document. `filter`, `pareto_sampling` and the dedup stages drop; all drops come before
the first dedup, so that no winner of a cluster is lost later.

A step whose edits leave nothing visible of a document (as `empty` when it is read) drops it by the rule `STEP.empty`, whether
its own edits did so or those of several steps together. Placeholders are text: `pii` empties no document.

A stage with the knob `text` reads the text as stored, or with earlier edits: `edited_text` with those of all earlier steps,
`text@STEP` with those up to that step. A stage that is used twice on the same documents, for two texts, has a `prefix` (or
`column`) that tells its columns apart, and so has a named rule set:

```yaml
steps:
  - quality_signals: {}
  - c4_lines: {rules: datatrove}
  - quality_signals: {text: edited_text, prefix: edited_}
    name: signals_of_edited_text
  - filter:
      - {rules: gopher_quality@massivetext}
      - {rules: fineweb@paper, prefix: edited_}
```

A changed edit measures again what read the edited text, and nothing else.
"""


def table(cls: Any) -> str:
    """Return a table of the fields of a dataclass: type, default, meaning."""
    notes = field_notes(cls)
    rows = ["| field | type | default | meaning |", "|---|---|---|---|"]
    for field in dataclasses.fields(cls):
        kind = field.type if isinstance(field.type, str) else getattr(field.type, "__name__", str(field.type))
        if not isinstance(field.type, type):
            kind = re.sub(r"\b(?:[a-z_]+\.)+", "", str(field.type))
        kind = kind.replace(" | None", " or nothing").replace(" | ", " or ")  # a bar would end the cell
        default = "required" if field.default is dataclasses.MISSING else f"`{field.default!r}`"
        if field.default_factory is not dataclasses.MISSING:
            default = "`{}`" if field.default_factory is dict else "its defaults"
        rows.append(f"| `{field.name}` | {kind} | {default} | {notes[field.name]} |")
    return "\n".join(rows) + "\n"


def _formats() -> str:
    rows = [f"| `{name}` | {kind.record} |" for name, kind in FORMATS.items()]
    return "\n".join(["| format | a record is |", "|---|---|", *rows]) + "\n"


def page() -> str:
    """Return the whole page."""
    notes = field_notes(CorpusConfig)
    pieces = [HEAD, "## The file\n", "| field | meaning |\n|---|---|"]
    pieces[-1] += "".join(f"\n| `{name}` | {note} |" for name, note in notes.items()) + "\n"
    pieces += ["## sources\n", inspect.getdoc(Source) or "", "", table(Source)]
    pieces += ["### format, of a source\n", _formats()]
    pieces += ["### text, of a source\n", inspect.getdoc(RecordText) or "", "", table(RecordText)]
    pieces += ["### split, of a source\n"]
    for split in (WholeSplit, FieldSplit, IdSplit):
        pieces += [inspect.getdoc(split) or "", "", table(split)]
    pieces += ["### remote, of a source and of the file\n", inspect.getdoc(Remote) or "", "", table(Remote), STEPS]
    for name, cls in sorted(STAGES.items()):
        pieces += [f"### {name}\n", inspect.getdoc(cls) or "", ""]
        if dataclasses.fields(cls):
            pieces.append(table(cls))
        if cls is Decontaminate:
            pieces += ["An entry of `sets`:\n", table(EvaluationSet)]
        if cls is Exclude:
            pieces += ["A list:\n", table(ExclusionList)]
        if cls is Patterns:
            pieces += ["A rule:\n", table(PatternRule)]
        if cls is RecordFields:
            pieces += ["A column:\n", table(RecordField)]
        if cls is Shards:
            pieces += [
                "An entry of `group_by` that is not just a column:\n",
                inspect.getdoc(GroupBy) or "",
                "",
                table(GroupBy),
            ]
        stage = cls.__new__(cls)
        try:
            columns = stage.writes()
        except AttributeError:
            columns = None
        if columns is not None and columns.names:
            pieces.append("Writes: " + ", ".join(f"`{n}` ({columns.field(n).type})" for n in columns.names) + ".\n")
    pieces += ["## Rules of `filter`\n", inspect.getdoc(Rule) or "", "", table(Rule), "Named rule sets:\n"]
    for name, rules in RULE_SETS.items():
        pieces.append(f"- `{name}`: " + ", ".join(f"`{rule.reason()}`" for rule in rules))
    pieces += [
        "\n## The file of `classifier train`\n",
        inspect.getdoc(ClassifierConfig) or "",
        "",
        table(ClassifierConfig),
    ]
    pieces += ["Of `fasttext`:\n", inspect.getdoc(FastTextKnobs) or "", "", table(FastTextKnobs)]
    for kind in (JudgedClassifierConfig, EmbeddingClassifierConfig):
        pieces += [f"### With `kind: {kind.kind}`\n", inspect.getdoc(kind) or "", "", table(kind)]
    columns = ColumnClassifierConfig
    pieces += ["### With `kind: columns`\n", inspect.getdoc(columns) or "", "", table(columns)]
    for name, knobs in (("regression", RegressionKnobs), ("boosted", BoostedKnobs)):
        pieces += [f"Of `{name}`:\n", inspect.getdoc(knobs) or "", "", table(knobs)]
    return "\n".join(pieces) + "\n"


if __name__ == "__main__":
    Path(__file__).with_name("corpus_file.md").write_text(page())
