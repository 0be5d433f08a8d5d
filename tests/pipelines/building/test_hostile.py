"""A corpus of malicious and honest files: the build ends in bounded memory, keeps the honest files and names
the malicious ones.
"""

import gzip
import io
import json
import re
import subprocess
import sys
import tarfile
import zipfile
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from tokenizers import Tokenizer

from pipelines.__main__ import main
from pipelines.contracts.lineage import open_corpus
from tests.conftest import paragraph

pytestmark = [
    pytest.mark.faults,
    pytest.mark.skipif(
        not Path("/proc/self/status").exists(), reason="the peak of memory is read from /proc, and names hold any byte"
    ),
]

ROOT = Path(__file__).parents[3]
LIMIT = 64 << 20  # max_decoded_bytes of the sources
BOMB = 100 << 20  # bytes that a bomb decodes to
CLAIM = 10 << 30  # bytes that headers claim
PEAK = 800  # MB
SOURCES = ("text", "lines", "tables", "web", "dump")
STEER = "\x1b[2J\x1b]0;owned\x07\x9b31m \u202egnp.exe\u202c"
MARKUP = "<script>alert(1)</script></pre><img src=http://evil.example/x onerror=alert(2)>{{ 7 * 7 }}"
FORMULA = "=cmd|' /C calc'!A0"
SPECIAL = "<eos><bos><pad><|endoftext|>"
FEW = ", max_quarantined: 1, allow_empty: true"  # most of it is hostile
YAML = """\
name: hostile
output: {root}/out
sources:
  - {{name: text, root: {root}/in/text, format: text, max_decoded_bytes: {limit}, max_document_bytes: 8000000{few}}}
  - {{name: lines, root: {root}/in/lines, format: jsonl, max_decoded_bytes: {limit}, max_document_bytes: 8000000{few}}}
  - {{name: tables, root: {root}/in/tables, format: parquet, max_decoded_bytes: 400000000, max_document_bytes: 500000{few}}}
  - {{name: web, root: {root}/in/web, format: warc, max_html_bytes: 1000000{few}}}
  - {{name: dump, root: {root}/in/dump, format: mediawiki{few}}}
steps:
  - quality_signals: {{}}
  - filter: [{{signal: n_bytes, at_least: 30, name: "{formula}"}}]
  - text_hash: {{}}
  - dedup_exact: {{}}
  - learn_tokenizer: {{vocab_size: 600, sample_bytes: 20000}}
  - shards: {{tokenizer: learn_tokenizer}}
"""
# Builds in this process alone, but for the one that parses pages; then prints the peak of the resident memory of both in MB.
CHILD = """
import resource, sys
from pipelines.__main__ import main

code = main(["build", sys.argv[1], "--in-process"])
own = next(line for line in open("/proc/self/status") if line.startswith("VmHWM"))
print("PEAK", max(int(own.split()[1]), resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss) >> 10)
sys.exit(code)
"""


def honest(number: int) -> str:
    return f"Honest document {number}. " + paragraph(number, 60)


def tarred(*members: tuple[tarfile.TarInfo | str, bytes]) -> bytes:
    sink = io.BytesIO()
    with tarfile.open(fileobj=sink, mode="w") as archive:
        for member, data in members:
            info = tarfile.TarInfo(member) if isinstance(member, str) else member
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return sink.getvalue()


def special_member(name: str, kind: bytes, target: str = "") -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info, b""


def zipped(*members: tuple[str, bytes]) -> bytes:
    sink = io.BytesIO()
    with zipfile.ZipFile(sink, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members:
            archive.writestr(zipfile.ZipInfo(name), data)
    return sink.getvalue()


def write_text(folder: Path) -> None:
    secret = folder.parent.parent / "secret"
    secret.write_text("The secret of another directory.")
    names = tarred(
        ("../../escaped.txt", honest(1).encode()),
        (f"{folder.parent.parent}/absolute.txt", honest(2).encode()),
        special_member("link", tarfile.SYMTYPE, str(secret)),
        special_member("hard", tarfile.LNKTYPE, str(secret)),
        special_member("device", tarfile.CHRTYPE),
        special_member("pipe", tarfile.FIFOTYPE),
        ("inner.zip", zipped(("x", b"inner"))),
        ("after.txt", honest(3).encode()),
    )
    claim = tarfile.TarInfo("claim.txt")
    claim.size = CLAIM
    files = {
        "names.tar": names,
        "names.zip": zipped(("../../escaped.txt", honest(4).encode()), ("bomb.txt", bytes(BOMB)), ("z", b"after")),
        "claim.tar": claim.tobuf(tarfile.GNU_FORMAT) + b"little",
        "honest.txt": honest(5).encode(),
        "bomb.gz": gzip.compress(b" " * BOMB),
        "russian_doll.gz": gzip.compress(gzip.compress(gzip.compress(b"doll"))),
        "latin.txt": "Le café est fermé.".encode("latin-1"),
        "utf16.txt": "In sixteen bits.".encode("utf-16"),
        "surrogate.txt": b"half \xed\xa0\x80 a pair",
        "overlong.txt": b"a slash \xc0\xaf in two bytes",
        "nothing.txt": bytes(100),
        f"{STEER}.txt": honest(6).encode() + STEER.encode(),
    }
    for name, data in files.items():
        (folder / name).write_bytes(data)


def write_lines(folder: Path) -> None:
    texts = [
        honest(7),
        f"{FORMULA} {honest(8)}",
        f"{MARKUP} {honest(9)}",
        f"{STEER} {honest(10)}",
        SPECIAL + honest(11),
    ]
    lines = [json.dumps({"text": text, "url": FORMULA, "note": MARKUP}).encode() for text in texts]
    lines += [
        b'{"text": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"text": "deep", "x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"text": "half \\ud800 a pair"}',
        b'{"text": "not \xff utf-8"}',
        b"[1, 2]",
        b'{"text": {"text": "inner"}}',
        json.dumps({"text": honest(12)}).encode(),
        b'{"text": "' + b"word " * (12 << 20) + b'"}',  # 60 MB without a line feed
    ]
    (folder / "lines.jsonl").write_bytes(b"\n".join(lines))
    bomb = zstandard.ZstdCompressor(level=19).compress(b" " * BOMB)
    assert BOMB / len(bomb) > 10_000
    (folder / "bomb.jsonl.zst").write_bytes(bomb)
    packed = gzip.compress(json.dumps({"text": honest(13)}).encode() + b"\n" + b" " * BOMB)
    assert BOMB / len(packed) > 950
    (folder / "late_bomb.jsonl.gz").write_bytes(packed)
    blank = b"\n \r\n" * (10 << 20) + json.dumps({"text": honest(20)}).encode()
    (folder / "more_blank.jsonl.zst").write_bytes(zstandard.compress(blank))
    members = gzip.compress(b"", mtime=0) * 100_000 + gzip.compress(json.dumps({"text": honest(21)}).encode())
    (folder / "more_members.jsonl.zst").write_bytes(zstandard.compress(members))


def write_tables(folder: Path) -> None:
    pq.write_table(pa.table({"text": [honest(14), FORMULA + honest(15)]}), folder / "honest.parquet")
    page = pa.table({"text": pa.array([b"x" * (300 << 20)], pa.binary())})
    pq.write_table(page, folder / "page.parquet", compression="zstd", use_dictionary=False, write_statistics=False)
    rows = pa.DictionaryArray.from_arrays(pa.array([0] * 600, pa.int32()), ["x" * 1_000_000])
    pq.write_table(pa.table({"text": rows}), folder / "rows.parquet", compression="zstd")
    assert max(path.stat().st_size for path in folder.iterdir()) < 40_000
    (folder / "claim.parquet").write_bytes(b"PAR1" + bytes(100) + (CLAIM % 2**32 - 1).to_bytes(4, "little") + b"PAR1")


def record(block: bytes, length: object = None, head: bytes = b"") -> bytes:
    size = len(block) if length is None else length
    return (
        b"WARC/1.0\r\nWARC-Type: response\r\nWARC-Target-URI: http://a.example/\r\nContent-Type: application/http\r\n"
        + head + f"Content-Length: {size}\r\n\r\n".encode() + block + b"\r\n\r\n"
    )  # fmt: skip


def page(text: str, head: str = "", body: bytes | None = None) -> bytes:
    html = f"<html><body><p>{text}</p></body></html>".encode() if body is None else body
    return f"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n{head}\r\n".encode() + html


def write_web(folder: Path) -> None:
    bomb = gzip.compress(b"<p>" + b" " * (20 << 20))
    records = [
        record(page(honest(16))),
        record(page("minus"), -1),
        record(page("letters"), "many"),
        record(page("header", head="X: y\r\n" * 50_000)),
        record(page("warc header"), head=b"X-Bomb: " + b"y" * (1 << 20) + b"\r\n"),
        record(page("bomb", "Content-Encoding: gzip\r\n", bomb)),
        record(page("codings", "Content-Encoding: gzip, gzip, gzip, gzip, gzip\r\n", bomb)),
        record(page("deep", body=b"<div>" * 100_000 + b"text")),
        record(page(honest(17) + "&lt;script&gt;alert(3)&lt;/script&gt;<script>alert(4)</script>")),
        record(page("claim"), CLAIM),
    ]
    (folder / "a.warc").write_bytes(b"".join(records))
    (folder / "b.warc.gz").write_bytes(gzip.compress(record(page(honest(18)))))


def write_dump(folder: Path) -> None:
    wiki = (
        '<mediawiki xmlns="http://www.mediawiki.org/xml/export-0.11/" version="0.11"><page><title>T</title><ns>0</ns>'
        "<id>1</id><revision><id>2</id><model>wikitext</model><format>text/x-wiki</format><text>{}</text></revision>"
        "</page></mediawiki>"
    )
    laughs = "".join(f'<!ENTITY l{i} "{f"&l{i - 1};" * 10}">' for i in range(1, 10))
    (folder / "honest.xml").write_text(wiki.format(honest(19)))
    (folder / "laughs.xml").write_text(f'<!DOCTYPE x [<!ENTITY l0 "ha">{laughs}]>' + wiki.format("&l9;"))
    (folder / "outside.xml").write_text('<!DOCTYPE x [<!ENTITY f SYSTEM "file:///etc/passwd">]>' + wiki.format("&f;"))


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int, set[Path]]:
    """Return the working directory, the peak memory in MB, and the files that the build left outside its
    output.
    """
    root = tmp_path_factory.mktemp("hostile")
    for name, write in [
        ("text", write_text), ("lines", write_lines), ("tables", write_tables), ("web", write_web), ("dump", write_dump),
    ]:  # fmt: skip
        (root / "in" / name).mkdir(parents=True)
        write(root / "in" / name)
    (root / "hostile.yaml").write_text(YAML.format(few=FEW, root=root, limit=LIMIT, formula=FORMULA))
    before = set(root.parent.rglob("*"))
    command = [sys.executable, "-c", CHILD, str(root / "hostile.yaml")]
    child = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert child.returncode == 0, child.stderr[-3000:]
    peak = int(re.search(r"PEAK (\d+)", child.stdout)[1])
    after = {path for path in root.parent.rglob("*") if root / "out" not in [path, *path.parents]}
    return root, peak, after - before


ASIDE = {
    "text/bomb.gz#0": "oversized", "text/claim.tar!claim.txt#0": "truncated", "text/latin.txt#0": "undecodable",
    "text/names.tar!link#0": "not_regular", "text/names.tar!hard#0": "not_regular",
    "text/names.tar!device#0": "not_regular", "text/names.tar!pipe#0": "not_regular",
    "text/names.tar!inner.zip#0": "nested_archive", "text/names.zip!bomb.txt#0": "oversized",
    "text/nothing.txt#0": "empty", "text/overlong.txt#0": "undecodable", "text/russian_doll.gz#0": "nested_archive",
    "text/surrogate.txt#0": "undecodable", "text/utf16.txt#0": "undecodable",
    "lines/bomb.jsonl.zst#0": "decoded_limit", "lines/late_bomb.jsonl.gz#1": "decoded_limit",
    "lines/lines.jsonl#5": "not_json", "lines/lines.jsonl#6": "not_json", "lines/lines.jsonl#7": "lone_surrogate",
    "lines/lines.jsonl#8": "undecodable", "lines/lines.jsonl#9": "not_object",
    "lines/lines.jsonl#10": "text_not_string", "lines/lines.jsonl#12": "oversized",
    "tables/claim.parquet#0": "not_parquet", "tables/page.parquet#0": "large_page",
    **{f"tables/rows.parquet#{row}": "oversized" for row in range(400)}, "tables/rows.parquet#400": "decoded_limit",
    "web/a.warc#1": "malformed_record",  # the two records with lengths that are none, up to the next header
    "web/a.warc#2": "bad_http", "web/a.warc#3": "malformed_record", "web/a.warc#4": "html_bytes",
    "web/a.warc#5": "bad_coding", "web/a.warc#6": "html_depth", "web/a.warc#8": "truncated",
    "dump/laughs.xml#0": "xml_doctype", "dump/outside.xml#0": "xml_doctype",
}  # fmt: skip


def test_honest_files_are_kept_in_bounded_memory_and_nothing_is_written_elsewhere(built) -> None:
    root, peak, written = built
    corpus = open_corpus(root / "out")
    texts = [text for part in corpus.parts() for text in part.table(("text",))["text"].to_pylist()]
    found = sorted(int(match[1]) for text in texts for match in re.finditer(r"Honest document (\d+)\.", text))
    assert found == list(range(1, 22))
    assert not [text for text in texts if "secret" in text or "root:" in text]
    assert peak < PEAK
    assert written == set()


def test_every_hostile_record_is_accounted_for_with_its_reason(built) -> None:
    corpus = open_corpus(built[0] / "out")
    aside = {
        f"{row.source}/{row.path}#{row.record}": row
        for name in corpus.manifest.sources
        for row in corpus.quarantined(name)
    }
    assert {name: row.reason for name, row in aside.items()} == ASIDE
    for name, facts in corpus.manifest.sources.items():
        reasons = Counter(row.reason for row in aside.values() if row.source == name)
        assert facts["quarantined"] == reasons
        kept = sum(part.rows for part in corpus.parts(name))
        assert facts["in"] == kept + reasons.total()
    dropped = [
        (row["source"], row["dropped"]) for row in corpus.manifest.funnel if row["step"] == "filter" and row["dropped"]
    ]
    assert dropped == [("text", {FORMULA: 1})]


def test_what_people_see_is_escaped(built, capsys: pytest.CaptureFixture[str]) -> None:
    out = built[0] / "out"
    unsafe = "[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]"
    for name in [f"text/{STEER}.txt#0", *(f"lines/lines.jsonl#{number}" for number in range(5))]:
        assert main(["inspect", str(out), "--doc", name]) == 0
    for rule in (FORMULA, "not_regular", "undecodable"):
        assert main(["inspect", str(out), "--rule", rule]) == 0
    shown = capsys.readouterr().out
    assert "\\x1b[2J" in shown  # of the file's name: texts lose their control characters when they are read
    assert "\\u202e" in shown
    assert not re.search(unsafe, shown)
    report = (out / "report.html").read_text()
    assert "<script" not in report
    assert "<img" not in report
    assert not re.search(unsafe, report.replace("\t", ""))


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_exports_hold_the_texts_as_data(built, tmp_path: Path, kind: str) -> None:
    """Formulas and markup at the beginning of a text, and a formula as its URL, are exported unchanged."""
    assert main(["export", str(built[0] / "out"), str(tmp_path / "e"), "--format", kind]) == 0
    names = {path.name for path in (tmp_path / "e").iterdir()}
    assert names == {"README.md", "data", "export.json", "croissant.json"}
    suffix = "jsonl.gz" if kind == "jsonl" else kind
    assert {path.name[6:] for path in (tmp_path / "e" / "data").iterdir()} == {f"{name}.{suffix}" for name in SOURCES}
    [path] = (tmp_path / "e" / "data").glob(f"*-lines.{suffix}")
    if kind == "jsonl":
        rows = [json.loads(line) for line in gzip.decompress(path.read_bytes()).splitlines()]
    else:
        rows = pq.read_table(path).to_pylist()
    assert [row["text"].partition("Honest")[0] for row in rows[1:4]] == ["", f"{FORMULA} ", f"{MARKUP} "]
    assert rows[1]["url"] == FORMULA


def test_special_tokens_in_a_text_are_its_letters(built) -> None:
    corpus = open_corpus(built[0] / "out")
    row = corpus.shard_rows(corpus.find("lines/lines.jsonl#4").id)[0]
    tokens = pa.ipc.open_file(built[0] / "out" / row.path).read_all()["tokens"][row.row].as_py()
    (folder,) = (built[0] / "out").glob("learn_tokenizer-*")
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    specials = {number for number, token in tokenizer.get_added_tokens_decoder().items() if token.special}
    assert {"<eos>", "<bos>", "<pad>"} <= {tokenizer.id_to_token(number) for number in specials}
    assert not specials & set(tokens)
    assert tokenizer.decode(tokens).startswith(SPECIAL)


@pytest.mark.parametrize(
    ("root", "schemes", "message"),
    [
        ("http://169.254.169.254/latest/meta-data/", "[http]", "169.254.169.254, which is not public"),
        ("http://localhost/", "[http]", "which is not public"),
        ("http://[::ffff:127.0.0.1]/", "[http]", "which is not public"),
        ("http://2130706433/", "[http]", "127.0.0.1, which is not public"),
        ("http://example.org/", "[s3]", "scheme 'http' may not be opened"),
        ("file:///etc/passwd", "[s3]", "got a file: URL, expected a path"),
        ("file:///etc/passwd", "[file]", "schemes: got 'file'"),
        ("http://user:secret@example.org/", "[http]", "holds a user name or password"),
    ],
)
def test_sources_that_lead_inside_are_refused(tmp_path: Path, capsys, root: str, schemes: str, message: str) -> None:
    path = tmp_path / "inside.yaml"
    path.write_text(
        f"name: inside\noutput: {tmp_path}/out\nsources:\n  - name: a\n    root: '{root}'\n    format: text\n"
        f"    remote: {{schemes: {schemes}}}\nsteps:\n  - text_hash: {{}}\n"
    )
    assert main(["build", str(path), "--in-process"]) == 2
    assert message in capsys.readouterr().err
    assert not list((tmp_path / "out").glob("*"))


def test_a_corpus_file_of_a_billion_values_is_refused_at_once(tmp_path: Path, capsys) -> None:
    levels = "".join(f"l{i}: &l{i} [{', '.join([f'*l{i - 1}'] * 9)}]\n" for i in range(1, 10))
    (tmp_path / "bomb.yaml").write_text(f"l0: &l0 [1]\n{levels}")
    assert main(["plan", str(tmp_path / "bomb.yaml")]) == 2
    assert "aliases that expand to more than" in capsys.readouterr().err


def test_names_in_messages_do_not_steer_the_terminal(tmp_path: Path, capsys) -> None:
    """Names of columns and files are escaped in errors and progress lines."""
    (tmp_path / "in").mkdir()
    pq.write_table(pa.table({f"{STEER}\nerror: all is well": ["a"]}), tmp_path / "in" / f"{STEER}.parquet")
    path = tmp_path / "names.yaml"
    path.write_text(
        f"name: names\noutput: {tmp_path}/out\nsources:\n  - {{name: a, root: {tmp_path}/in, format: parquet}}\n"
        "steps:\n  - text_hash: {}\n"
    )
    assert main(["build", str(path), "--in-process"]) == 2
    shown = capsys.readouterr()
    assert shown.err.count("\n") == 1
    assert "has no column 'text'; its columns are \\x1b[2J" in shown.err
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", shown.out + shown.err)
