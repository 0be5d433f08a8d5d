"""Write docs/python_api.md from the functions and classes of `pipelines`: `python docs/python_api.py`."""

import dataclasses
import inspect
import re
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import pipelines
from pipelines import api
from pipelines.building.build_plan import BuildPlan, PlannedStep
from pipelines.contracts.shard_set import Shard
from pipelines.explore.comparison.compare_corpora import CorpusComparison, SourceChange
from pipelines.explore.comparison.compare_distributions import DistributionChange
from pipelines.explore.comparison.compare_ngrams import NgramComparison
from pipelines.explore.document_history import DocumentHistory
from pipelines.explore.searching.index_corpus import IndexReport
from pipelines.explore.searching.search_corpus import SearchResult
from pipelines.explore.whatif import Impact
from pipelines.planning.forecast import Estimate, Forecast

HEAD = """\
# Python

What `from pipelines import ...` offers. [looking.md](looking.md#python) has examples, [tutorial.ipynb](tutorial.ipynb) is a
notebook, and [own_stages.md](own_stages.md) explains stages and formats of your own. A location is a path, or a URL of an object
store. Errors are those of `gristmill.errors`: `UserError` and its subclasses have a message of one line that says what to do.
This page is generated from the code (`python docs/python_api.py`); a test fails when they differ.
"""

VALUES = (
    BuildPlan, PlannedStep, Forecast, Estimate, DocumentHistory, Impact, CorpusComparison, SourceChange, DistributionChange,
    NgramComparison, SearchResult, IndexReport, Shard,
)  # fmt: skip
"""Classes of what functions return."""


def signature(function: Any, name: str) -> str:
    """Return the signature as text, with one parameter per line if it is long."""
    written = inspect.signature(function)
    parameters = [each for each in written.parameters.values() if each.name != "self"]
    text = str(written.replace(parameters=parameters))
    text = re.sub(r"'([^']*)'", r"\1", text) if "from __future__" in text else text
    text = re.sub(r"\b(?:[a-z_]+\.)+([A-Z]\w+)", r"\1", text).replace("pyarrow.lib.", "")
    line = f"{name}{text}"
    if len(line) <= 100:
        return line
    pieces = [re.sub(r"\b(?:[a-z_]+\.)+([A-Z]\w+)", r"\1", str(each)) for each in parameters]
    keywords = next((at for at, each in enumerate(parameters) if each.kind is each.KEYWORD_ONLY), None)
    if keywords is not None:
        pieces.insert(keywords, "*")
    result = text.rpartition(" -> ")[2]
    return f"{name}(\n" + "".join(f"    {piece},\n" for piece in pieces) + f") -> {result}"


def paragraphs(of: Any) -> str:
    """Return the docstring of an object."""
    return inspect.cleandoc(of.__doc__ or "")


def described(kind: type) -> list[str]:
    """Return the lines that describe a class: its docstring, its fields and its methods."""
    lines = [f"### {kind.__name__}", "", paragraphs(kind), ""]
    if dataclasses.is_dataclass(kind):
        names = ", ".join(
            f"`{each.name}: {shown(each.type)}`" for each in dataclasses.fields(kind) if each.name[0] != "_"
        )
        lines += [f"Fields: {names}", ""]
    for name, member in vars(kind).items():
        if name.startswith("_") or name in ("check",):
            continue
        function = getattr(member, "fget", None) or getattr(member, "func", None) or member
        if not inspect.isfunction(function):
            continue
        called = function is member
        lines += ["```python", signature(function, name) if called else f"{name}: {result_of(function)}", "```", ""]
        lines += [paragraphs(function), ""]
    return lines


def result_of(function: Any) -> str:
    """Return the type of a property."""
    return signature(function, "").rpartition(" -> ")[2]


def shown(annotation: Any) -> str:
    """Return a type as text, without the modules of classes."""
    text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    return re.sub(r"\b(?:[a-z_]+\.)+([A-Z]\w+)", r"\1", text)


def page() -> str:
    """Return the whole page."""
    offered = {name: getattr(api, name) for name in pipelines.__all__}
    functions = {name: each for name, each in offered.items() if inspect.isfunction(each)}
    lines = [HEAD, "## Functions", ""]
    for name, function in functions.items():
        lines += [f"### {name}", "", "```python", signature(function, name), "```", "", paragraphs(function), ""]
    lines += ["## Corpus", "", *described(api.OpenCorpus)]
    lines += ["## Values that functions return", ""]
    for kind in VALUES:
        lines += described(kind)
    lines += ["## Stages and formats of your own", ""]
    for name, each in offered.items():
        if inspect.isclass(each) and each is not api.OpenCorpus and each is not api.Source:
            lines += described(each)
        elif not inspect.isfunction(each) and not inspect.isclass(each):
            lines += [
                f"### {name}",
                "",
                f"The {'edited' if name == 'EDITED_TEXT' else 'stored'} text of documents, for `reads()` of a stage.",
                "",
            ]
    lines += ["### Source", "", "A source of a corpus file; [corpus_file.md](corpus_file.md) documents its fields.", ""]
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).rstrip() + "\n"


if __name__ == "__main__":
    Path(__file__).with_suffix(".md").write_text(page())
