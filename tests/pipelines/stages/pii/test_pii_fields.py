"""With `fields`, personal data in `url` and `meta` is found, counted, and replaced in every export, while the
stored columns stay unchanged.
"""

import gzip
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import pipelines
from pipelines.__main__ import main
from pipelines.building.build import build
from pipelines.cluster.local import LocalCluster
from pipelines.contracts.lineage import open_corpus
from pipelines.planning.corpus import CorpusConfig, StepConfig
from pipelines.planning.inventory import take_inventory
from pipelines.planning.plan import make_plan
from pipelines.reading.sources.source import Source
from pipelines.stages.measure.url_rules import UrlRules
from pipelines.stages.pii.pii import Pii

CANARIES = [f"canary.{number}@corp.example.com" for number in range(9)]
META = {
    "author": f"Jane <{CANARIES[0]}>", "score": 17, "nested": [{"to": [CANARIES[1], None, True]}, 4111111111111111],
    CANARIES[2]: {CANARIES[3]: 1e-7, CANARIES[4]: 123456789012345678901234567890}, "plain": "é \u2028 <b>",
}  # fmt: skip
URL = f"https://example.com/u?mail={CANARIES[5]}"


def table(*rows: tuple[str | None, dict | None]) -> pa.Table:
    return pa.table(
        {
            "id": pa.array([bytes([row]) * 16 for row in range(len(rows))], pa.binary(16)),
            "text": pa.array([f"Write to {CANARIES[8]}." for _ in rows], pa.large_string()),
            "url": pa.array([url for url, _ in rows], pa.string()),
            "meta": pa.array([None if meta is None else json.dumps(meta) for _, meta in rows], pa.string()),
        }
    )


def test_all_strings_of_the_named_fields_are_searched() -> None:
    stage = Pii(entities=("EMAIL_ADDRESS", "CREDIT_CARD"), fields=("url", "meta"))
    stage.check()
    assert [each.name for each in stage.reads()] == ["text", "url", "meta"]
    docs = table((URL, META), (None, None), ("https://example.com/", {"plain": "nothing", "year": 2001}))
    found = stage.annotate(docs)
    assert found.column_names == stage.writes().names
    assert found["pii_url"].to_pylist() == ["https://example.com/u?mail=<EMAIL_ADDRESS>", None, None]
    first, *others = found["pii_meta"].to_pylist()
    assert others == [None, None]
    assert json.loads(first) == {
        "author": "Jane <<EMAIL_ADDRESS>>", "score": 17, "nested": [{"to": ["<EMAIL_ADDRESS>", None, True]}, "<CREDIT_CARD>"],
        "<EMAIL_ADDRESS>": {"<EMAIL_ADDRESS>": 1e-7, "<EMAIL_ADDRESS>'": 123456789012345678901234567890}, "plain": "é \u2028 <b>",
    }  # fmt: skip
    assert found["pii_email_address"].to_pylist() == [7, 1, 1]
    assert found["pii_credit_card"].to_pylist() == [1, 0, 0]
    plain = Pii(entities=("EMAIL_ADDRESS", "CREDIT_CARD")).annotate(docs)
    assert found["edits"].equals(plain["edits"])


E = "<EMAIL_ADDRESS>"


@pytest.mark.long
@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("https://a.example/u/jane.roe@corp.example.com/posts?page=2", f"https://a.example/u/{E}/posts?page=2"),
        ("https://a.example/?to=x+y@b.com&cc=z@c.org#top", f"https://a.example/?to={E}&cc={E}#top"),
        ("https://a.example/unsubscribe?m=jane%40corp.example.com&n=1", f"https://a.example/unsubscribe?m={E}&n=1"),
        ("http://intranet:8080/mail?m=jane@b.com", f"http://intranet:8080/mail?m={E}"),
        ("https://jane@corp.example.com/inbox", f"https://{E}/inbox"),
        ("//a.example/é/jane@b.com/é", f"//a.example/é/{E}/é"),
        ("WWW.a.example/jane@b.com", f"WWW.a.example/{E}"),
        ("mailto:jane@b.com?subject=hi", f"mailto:{E}?subject=hi"),
        ("https://social.example/@jane.roe", None),
        ("https://social.example/@jane@b.example.com", f"https://social.example/@{E}"),
        ("https://a.example/x%40y", None),
        ("https://a.example/plain", None),
    ],
)
def test_only_the_address_of_a_url_is_replaced(url: str, expected: str | None) -> None:
    stage = Pii(entities=("EMAIL_ADDRESS", "URL_CREDENTIALS"), fields=("url", "meta"))
    found = stage.annotate(table((url, {"link": url})))
    assert found["pii_url"].to_pylist() == [expected]
    meta = found["pii_meta"][0].as_py()
    assert (None if meta is None else json.loads(meta)["link"]) == expected
    assert found["pii_email_address"].to_pylist() == [1 + 2 * (expected or "").count(E)]


def test_a_url_whose_address_is_only_annotated_stays() -> None:
    stage = Pii(entities=("EMAIL_ADDRESS",), fields=("url",), action="annotate")
    found = stage.annotate(table(("https://a.example/?m=jane%40b.com", None)))
    assert (found["pii_url"].to_pylist(), found["pii_email_address"].to_pylist()) == ([None], [2])


def test_text_that_is_no_url_keeps_presidios_spans() -> None:
    values = {"note": f"see https://example.com/?m={CANARIES[0]}"}
    found = Pii(entities=("EMAIL_ADDRESS",), fields=("meta",)).annotate(table((None, values)))
    assert json.loads(found["pii_meta"][0].as_py()) == {"note": f"see https://{E}"}


def test_only_the_named_fields_are_searched() -> None:
    found = Pii(entities=("EMAIL_ADDRESS",), fields=("meta.author", "meta.none")).annotate(table((URL, META)))
    assert "pii_url" not in found.column_names
    expected = META | {"author": "Jane <<EMAIL_ADDRESS>>"}
    assert json.loads(found["pii_meta"][0].as_py()) == expected
    assert found["pii_email_address"].to_pylist() == [2]


def test_what_is_only_annotated_stays_and_counts() -> None:
    found = Pii(entities=("EMAIL_ADDRESS",), fields=("meta", "url"), action="annotate").annotate(table((URL, META)))
    assert found["pii_email_address"].to_pylist() == [7]
    assert (found["pii_meta"].to_pylist(), found["pii_url"].to_pylist()) == ([None], [None])
    assert len(found["pii_spans"][0].as_py()) == 1
    cards = Pii(entities=("CREDIT_CARD",), fields=("meta",), action="annotate").annotate(table((None, META)))
    assert (cards["pii_meta"].to_pylist(), cards["pii_credit_card"].to_pylist()) == ([None], [1])


def test_a_field_within_a_field_is_searched() -> None:
    """With the rest of the top-level field. A name with a dot may also be a name as it stands."""
    meta = {"to": {"mail": CANARIES[0], "name": CANARIES[1]}, "to.mail": CANARIES[2], "tom": CANARIES[3]}
    found = Pii(entities=("EMAIL_ADDRESS",), fields=("meta.to.mail",)).annotate(table((None, meta)))
    hidden = "<EMAIL_ADDRESS>"
    expected = {"to": {"mail": hidden, "name": hidden}, "to.mail": hidden, "tom": CANARIES[3]}
    assert json.loads(found["pii_meta"][0].as_py()) == expected


def test_values_that_are_nested_deeply_are_searched() -> None:
    deep = '{"deep": ' + "[" * 800 + f'"{CANARIES[0]}"' + "]" * 800 + "}"
    docs = table((None, {})).set_column(3, "meta", pa.array([deep]))
    found = Pii(entities=("EMAIL_ADDRESS",), fields=("meta",)).annotate(docs)
    assert found["pii_meta"][0].as_py() == deep.replace(" ", "").replace(CANARIES[0], "<EMAIL_ADDRESS>")


@pytest.mark.parametrize("name", ["text", "meta.", "url.host", "author", ""])
def test_other_fields_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=r"fields: got .*expected url, meta for all other fields"):
        Pii(fields=(name,)).check()


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("fields")
    (root / "mail").mkdir()
    head = f"From: {CANARIES[0]}\nTo: A <{CANARIES[1]}>, {CANARIES[2]}\nSubject: hi"
    (root / "mail" / "1").write_text(f"{head}\n\nHello {CANARIES[3]}\n")
    rows = [{"text": f"x {CANARIES[4]}", "url": URL, **META}, {"text": "y", "url": "https://example.com/plain"}]
    (root / "web.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    sources = (Source("mail", str(root / "mail"), "message"), Source("web", str(root / "web.jsonl"), "jsonl"))
    steps = (
        StepConfig("url_rules", UrlRules(), "url_rules", ("web",)),
        StepConfig("pii", Pii(entities=("EMAIL_ADDRESS",), fields=("url", "meta")), "pii"),
    )
    config = CorpusConfig("fields", str(root / "out"), sources, steps)
    build(make_plan(config, take_inventory(sources, root / "out")), LocalCluster(), lambda line: None)
    return root / "out"


@pytest.mark.parametrize("kind", ["parquet", "jsonl"])
@pytest.mark.parametrize("more", [[], ["--columns", "url_normal", "pii_meta", "pii_email_address"]])
def test_no_canary_survives_in_an_export(corpus: Path, tmp_path: Path, kind: str, more: list[str], capsys) -> None:
    assert main(["export", str(corpus), str(tmp_path / "e"), "--format", kind, *more]) == 0
    assert "not redacted" not in capsys.readouterr().out
    rows = []
    for file in sorted((tmp_path / "e").rglob("*")):
        if file.suffix == ".parquet":
            rows += pq.read_table(file).to_pylist()
        elif file.suffix == ".gz":
            rows += [json.loads(line) for line in gzip.decompress(file.read_bytes()).splitlines()]
    assert not any("canary" in json.dumps(row) for row in rows)
    by_id = {row["id"]: row for row in rows}
    assert json.loads(by_id["mail/1#0"]["meta"])["From"] == "<EMAIL_ADDRESS>"
    assert json.loads(by_id["web/web.jsonl#0"]["meta"])["plain"] == META["plain"]
    assert by_id["web/web.jsonl#1"]["url"] == "https://example.com/plain"
    if more:
        assert by_id["web/web.jsonl#0"]["url_normal"] is None
        assert by_id["web/web.jsonl#1"]["url_normal"] is not None
        assert by_id["mail/1#0"]["pii_email_address"] == 4


def test_the_stored_columns_stay_and_inspect_hides_what_is_found(corpus: Path, capsys) -> None:
    stored = [row for part in open_corpus(corpus).parts() for row in part.table(("meta", "url")).to_pylist()]
    assert sum("canary" in json.dumps(row) for row in stored) == 2
    for identifier in ("mail/1#0", "web/web.jsonl#0"):
        assert main(["inspect", str(corpus), "--doc", identifier]) == 0
        assert "canary" not in capsys.readouterr().out


def test_without_fields_the_export_says_so(corpus: Path, tmp_path: Path, capsys) -> None:
    sources = (Source("web", str(corpus.parent / "web.jsonl"), "jsonl"),)
    config = CorpusConfig(
        "bare", str(tmp_path / "out"), sources, (StepConfig("pii", Pii(entities=("EMAIL_ADDRESS",)), "pii"),)
    )
    build(make_plan(config, take_inventory(sources, tmp_path / "out")), LocalCluster(), lambda line: None)
    assert main(["export", str(tmp_path / "out"), str(tmp_path / "e")]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "url of web: not redacted, may hold personal data; name it in `fields` of the pii step" in said
    assert "meta of web: not redacted" in said
    assert main(["export", str(tmp_path / "out"), str(tmp_path / "f"), "--without", "url,meta"]) == 0
    assert "not redacted" not in capsys.readouterr().out
    assert "canary" not in str([pq.read_table(file).to_pylist() for file in (tmp_path / "f" / "data").iterdir()])


def test_no_canary_survives_in_what_python_reads(corpus: Path) -> None:
    opened = pipelines.open_corpus(corpus)
    columns = [name for name in opened.columns.names if name != "pii_url"]
    for reader in (opened.documents(columns), opened.verdicts(columns)):
        rows = reader.read_all().to_pylist()
        assert not any("canary" in json.dumps(row) for row in rows)
        normal = {row["id"]: row["url_normal"] for row in rows}
        assert normal["web/web.jsonl#0"] is None
        assert normal["web/web.jsonl#1"] is not None
