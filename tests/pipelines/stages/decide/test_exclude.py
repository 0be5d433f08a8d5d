"""Exclusion lists: what each kind of entry covers, how matches are counted, and lines that are not entries."""

import gzip
import json

import pytest

import pipelines.stages.decide.exclude as exclude
from gristmill.errors import ConfigError, UserError
from pipelines.__main__ import main
from pipelines.building.build import build
from pipelines.cluster.local import LocalCluster
from pipelines.contracts.lineage import open_corpus
from pipelines.planning.corpus import load_corpus_config
from pipelines.planning.inventory import take_inventory
from pipelines.planning.plan import make_plan
from pipelines.stages.lists.entry_lists import load_entries
from pipelines.stages.lists.url_normal import normalise_url

URLS = [
    "https://www.Example.org/a?utm_id=3", "http://example.org/a/b", "https://blog.example.org/x", "https://notexample.org/",
    "http://münchen.example/ü", "https://127.0.0.1/x", "https://10.127.0.0.1.example/", None, "spam", "https://kept.example/",
]  # fmt: skip


@pytest.fixture
def corpus(tmp_path):
    """Return a function that builds a corpus of `URLS`; its `lists` maps list names to (kind, content)."""
    rows = [{"text": f"text {number}", "url": url} for number, url in enumerate(URLS)]
    (tmp_path / "web.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))

    def planned(lists, name="out", part_bytes=1000, before=""):
        entries = []
        for number, (list_name, (kind, content)) in enumerate(lists.items()):
            file = tmp_path / f"{list_name}{number}.txt.gz"
            file.write_bytes(gzip.compress(content.encode()))
            entries.append({"name": list_name, "by": kind, "files": [str(file)]})
        path = tmp_path / f"{name}.yaml"
        source = f"{{name: web, root: {tmp_path}/web.jsonl, format: jsonl, part_bytes: {part_bytes}}}"
        path.write_text(
            f"name: c\noutput: {tmp_path}/{name}\nsources:\n  - {source}\nsteps:\n  - text_hash: {{}}\n{before}"
            f"  - exclude: {json.dumps(entries)}\n"
        )
        config = load_corpus_config(path)
        return make_plan(config, take_inventory(config.sources, tmp_path / name))

    def built(*arguments, **more):
        plan = planned(*arguments, **more)
        build(plan, LocalCluster(), lambda line: None)
        return open_corpus(plan.config.place)

    built.planned = planned
    return built


def drops(corpus):
    return [drop for part in corpus.parts() for drop in part.table(("drop",))["drop"].to_pylist()]


def facts(corpus):
    return next(step for step in corpus.steps if step.stage == "exclude").manifest.facts["lists"]


def named(corpus):
    return [number for number, drop in enumerate(drops(corpus)) if drop is not None]


@pytest.mark.long
@pytest.mark.parametrize(
    ("kind", "content", "rows"),
    [
        ("host", "example.org\n", [0, 1, 2]),
        ("host", "*.example.org", [0, 1, 2]),
        ("host", "blog.Example.ORG.\n# a note\n\n", [2]),
        ("host", "xn--mnchen-3ya.example", [4]),
        ("host", "\ufeffmünchen.example", [4]),
        ("host", "127.0.0.1", [5]),
        ("host", "0.0.1\nspam", [8]),
        ("url", "http://example.org/a", [0]),
        ("url", "https://EXAMPLE.org/a?utm_source=x#top", [0]),
        ("url", "https://www.example.org/a/b", [1]),
        ("url", "https://example.org/", []),
        ("url", "http://münchen.example/%C3%BC", [4]),
        ("id", "web/web.jsonl#3\nweb/other.jsonl#4\nweb/web.jsonl#99", [3]),
        ("id", "", []),
    ],
)
def test_what_an_entry_covers(corpus, kind, content, rows):
    assert named(corpus({"optout": (kind, content)})) == rows


def test_ids_and_hashes_in_hexadecimal_digits(corpus):
    first = corpus({"none": ("id", "")}, "first")
    rows = [row for part in first.parts() for row in part.table(("id", "text_hash")).to_pylist()]
    second = corpus(
        {"a": ("id", rows[1]["id"].hex()), "b": ("text_hash", rows[2]["text_hash"].hex().upper())}, "second"
    )
    assert [drop for drop in drops(second) if drop] == ["a.id", "b.text_hash"]
    assert named(second) == [1, 2]


LISTS = {
    "opt_outs": ("host", "example.org\nblog.example.org\nexample.org\nelsewhere.example\n"),
    "licences": ("url", "http://example.org/a\nhttps://kept.example/\nhttps://gone.example/\n"),
    "takedowns": ("id", "web/web.jsonl#9\nweb/web.jsonl#7\n"),
}


@pytest.mark.parametrize(("part_bytes", "batch"), [(1000, 65_536), (20, 65_536), (1000, 3)])
def test_the_first_list_drops_and_every_list_is_counted(corpus, monkeypatch, part_bytes, batch):
    monkeypatch.setattr(exclude, "_BATCH", batch)
    opened = corpus(LISTS, part_bytes=part_bytes)
    host, url, identifier = "opt_outs.host", "licences.url", "takedowns.id"
    assert drops(opened) == [host, host, host, None, None, None, None, identifier, None, url]
    assert facts(opened) == {
        host: {"entries": 3, "repeated": 1, "matched": 2, "never_matched": 1, "documents": 3},
        url: {"entries": 3, "repeated": 0, "matched": 2, "never_matched": 1, "documents": 2},
        identifier: {"entries": 2, "repeated": 0, "matched": 2, "never_matched": 0, "documents": 2},
    }
    funnel = next(row for row in opened.manifest.funnel if row["step"] == "exclude")
    assert funnel["dropped"] == {host: 3, url: 1, identifier: 1}
    assert funnel["documents_out"] == len(URLS) - 5


@pytest.mark.long
def test_documents_dropped_before_are_counted_as_named_but_dropped_once(corpus, tmp_path, capsys):
    before = "  - filter: [{signal: url, none_of: ['https://blog.example.org/x'], name: blog}]\n"
    opened = corpus(LISTS, before=before)
    assert drops(opened)[:4] == ["opt_outs.host", "opt_outs.host", "blog", None]
    assert facts(opened)["opt_outs.host"]["documents"] == 3
    assert main(["inspect", str(tmp_path / "out"), "--rule", "licences.url", "--samples", "1"]) == 0
    assert "web/web.jsonl#9" in capsys.readouterr().out


def test_a_changed_list_is_another_step_and_its_path_is_none(corpus, tmp_path):
    plans = [
        corpus.planned({"a": ("host", content)}, name) for name, content in (("x", "a.example"), ("y", "b.example"))
    ]
    assert len({plan.step("exclude").fingerprint for plan in plans}) == 2
    renamed = corpus.planned({"b": ("host", "b.example")}, "z")
    assert renamed.step("exclude").fingerprint != plans[1].step("exclude").fingerprint
    assert str(tmp_path) not in json.dumps(plans[0].step("exclude").identity)


def test_a_list_that_changes_after_the_plan_stops_the_build(corpus, tmp_path):
    plan = corpus.planned({"a": ("host", "a.example")})
    (tmp_path / "a0.txt.gz").write_bytes(gzip.compress(b"b.example"))
    exclude.load_list.cache_clear()
    with pytest.raises(UserError, match=r"a0.txt.gz: changed after the build was planned"):
        build(plan, LocalCluster(), lambda line: None)


@pytest.mark.parametrize(
    ("kind", "line", "message"),
    [
        (
            "host",
            "https://example.org",
            r"a0.txt.gz:2: got 'https://example.org', expected a host such as example.org and",
        ),
        ("host", "example.org/a", "expected a host"),
        ("host", "example.org:80", "expected a host"),
        ("host", "www.", "expected a host"),
        ("host", "two words", "expected a host"),
        ("url", "example.org/a", "expected a URL with its scheme"),
        ("url", "mailto:jane@example.org", "expected a URL"),
        ("url", "https:///a", "expected a URL"),
        ("id", "web", r"expected a document id, source/path#record or 32 hex digits"),
        ("id", "web/a#b", "expected a document id"),
        ("id", f"web/a#{1 << 64}", "expected a document id"),
        ("text_hash", "12", "expected 32 hex digits"),
        ("text_hash", "g" * 32, "expected 32 hex digits"),
    ],
)
def test_a_line_that_is_no_entry_is_found_by_the_plan(corpus, kind, line, message):
    with pytest.raises(UserError, match=message):
        corpus.planned({"a": (kind, f"# a list\n{line}\n")})


def test_damaged_files(tmp_path):
    file = tmp_path / "list.txt.gz"
    file.write_bytes(gzip.compress(b"example.org\n" * 1000)[:30])
    with pytest.raises(UserError, match=r"list.txt.gz: cannot be decompressed"):
        load_entries("host", [str(file)])
    (tmp_path / "list.txt").write_bytes(b"example.org\n\xff\n")
    with pytest.raises(UserError, match=r"list.txt:2: is not UTF-8"):
        load_entries("host", [str(tmp_path / "list.txt")])


@pytest.mark.parametrize(
    ("lists", "message"),
    [
        ([], "lists: got an empty list"),
        ([{"name": "A b", "by": "id", "files": ["x"]}], "name: got 'A b', expected lower-case"),
        ([{"name": "a", "by": "id", "files": []}], "files: got an empty list"),
        ([{"name": "a", "by": "id", "files": ["nowhere.txt"]}], r"files\[0\]: got 'nowhere.txt', expected a file"),
        ([{"name": "a", "by": "domain", "files": ["x"]}], "by: got 'domain', expected one of 'id', 'url', 'host'"),
        ([{"name": "a", "by": "id", "files": ["s3://b/x"]}], r"exclude.lists: got a URL \(s3:\)"),
    ],
)
def test_lists_that_do_not_fit(tmp_path, lists, message):
    (tmp_path / "web.jsonl").write_text('{"text": "a"}\n')
    path = tmp_path / "c.yaml"
    source = f"{{name: web, root: {tmp_path}/web.jsonl, format: jsonl}}"
    path.write_text(
        f"name: c\noutput: {tmp_path}/out\nsources:\n  - {source}\nsteps:\n  - exclude: {json.dumps(lists)}\n"
    )
    with pytest.raises(ConfigError, match=message):
        load_corpus_config(path)


def test_urls_of_one_page_have_one_entry(tmp_path):
    pages = [
        "http://www.example.org/a?b=1&a=2#x",
        "https://example.org:443/a?a=2&b=1",
        "HTTPS://EXAMPLE.ORG/./a?a=2&b=1",
    ]
    (tmp_path / "list.txt").write_text("\n".join(pages))
    assert load_entries("url", [str(tmp_path / "list.txt")]).repeated == 2
    assert normalise_url(pages[0]).host == "www.example.org"


def test_a_url_inside_a_url_keeps_its_scheme(tmp_path):
    pages = ["ftp://a.org/?u=http://b.org", "ftp://a.org/?u=b.org", "http://a.org/?u=https://www.b.org"]
    (tmp_path / "list.txt").write_text("\n".join(pages))
    assert load_entries("url", [str(tmp_path / "list.txt")]).repeated == 0
