"""User-defined stages that fail or return something invalid: a document that causes it is named, and set
aside if the user asks for it.
"""

from dataclasses import dataclass

import pyarrow as pa
import pytest

import pipelines
from gristmill.errors import ConfigError, PoisonError, UserError
from pipelines import EDITED_TEXT, PartStage
from pipelines.contracts.edits import EDITS

CORPUS = """
name: wrong
output: {root}/out
sources:
  - {{name: web, root: {root}/web, format: jsonl}}
steps:
  - faulty: {{way: {way}}}
"""


@dataclass(frozen=True)
class Faulty(PartStage):
    """A stage that goes wrong in the given `way`, for some ways only on texts that contain "BAD"."""

    way: str

    def reads(self):
        return (EDITED_TEXT,) if self.way != "edits without text" else ()

    def writes(self):
        return pa.schema([("length", pa.int8()), ("edits", EDITS)])

    def annotate(self, docs):
        texts = docs["edited_text"].to_pylist()
        if self.way == "raises" and any("BAD" in text for text in texts):
            raise KeyError(texts[0])
        if self.way == "lacks a library":
            import no_such_library  # noqa: F401
        lengths = [len(text) for text in texts if self.way != "drops rows" or "BAD" not in text]
        if self.way == "always more":
            lengths += [1] if len(texts) > 1 else []
        edits = [[(0, 99, "", "x")] if self.way == "edits outside" and "BAD" in text else None for text in texts]
        edits = [*edits, None][: len(lengths)]
        names = ["size", "edits"] if self.way == "renames" else self.writes().names
        size = 1000 if self.way == "overflows" and any("BAD" in text for text in texts) else 0
        return pa.table([pa.array([n + size for n in lengths]), pa.array(edits, EDITS)], names)


@pytest.fixture
def build(tmp_path):
    (tmp_path / "web").mkdir()
    lines = [f'{{"text": "document {n}{" BAD secret" if n == 5 else ""}"}}' for n in range(9)]
    (tmp_path / "web" / "a.jsonl").write_text("\n".join(lines))

    def build(way, **options):
        (tmp_path / "corpus.yaml").write_text(CORPUS.format(root=tmp_path, way=way))
        return pipelines.build(tmp_path / "corpus.yaml", stages={"faulty": Faulty}, in_process=True, **options)

    return build


@pytest.mark.long
@pytest.mark.parametrize(
    ("way", "reason"),
    [
        ("raises", "KeyError,"),
        ("overflows", "ArrowInvalid,"),
        ("drops rows", r"StageOutputError \(8 rows for 9 documents, expected one for each\)"),
        ("edits outside", r"StageOutputError \(an edit lies outside its text\)"),
    ],
)
def test_the_document_is_named_and_can_be_set_aside(build, way, reason):
    with pytest.raises(PoisonError, match=f"faulty: document .* makes it fail with {reason}") as failed:
        build(way)
    assert "secret" not in str(failed.value)
    corpus = build(way, quarantine_poison=True)
    rows = corpus.verdicts(["length"]).read_all().sort_by("id").to_pylist()
    assert [row["drop"] for row in rows] == [None] * 5 + ["poison"] + [None] * 3
    assert [row["length"] for row in rows] == [10] * 5 + [None] + [10] * 3


@pytest.mark.long
@pytest.mark.parametrize(
    ("way", "message"),
    [
        (
            "renames",
            "Faulty.annotate: returned size, edits, expected a table with the columns of `writes..`: length, edits",
        ),
        ("always more", "the stage returned wrong output .10 rows for 9 documents, expected one for each."),
    ],
)
def test_what_no_document_causes_ends_the_build(build, way, message):
    with pytest.raises(UserError, match=message):
        build(way, quarantine_poison=True)


def test_a_library_that_a_worker_lacks_is_not_blamed_on_a_document(build, monkeypatch):
    monkeypatch.setattr("pipelines.cluster.local.PAUSE_SECONDS", 0)
    with pytest.raises(
        UserError, match="a worker has not all that is installed here: No module named 'no_such_library'"
    ):
        build("lacks a library", quarantine_poison=True)


def test_edits_need_a_text(build):
    with pytest.raises(
        ConfigError, match=r"steps\[0\].faulty: writes edits, but `reads\(\)` has neither TEXT nor EDITED_TEXT"
    ):
        build("edits without text")
