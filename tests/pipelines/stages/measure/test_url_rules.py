"""URL rules: normalisation against the examples of RFC 3986, block lists against a slow reference, words, and
null URLs.
"""

import pickle

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gristmill.config import parse
from gristmill.errors import ConfigError, UserError
from gristmill.storage.store import file_checksum
from pipelines.stages.decide.filter import Filter
from pipelines.stages.decide.rules import Rule
from pipelines.stages.lists.url_lists import load_block_lists
from pipelines.stages.lists.url_normal import normalise_url
from pipelines.stages.measure.url_rules import URL_SIGNALS, UrlRules


def measured(stage, *urls):
    ids = pa.array([row.to_bytes(16) for row in range(len(urls))], pa.binary(16))
    table = stage.annotate(pa.table({"id": ids, "url": pa.array(urls, pa.string())}))
    assert table.schema == stage.writes() == URL_SIGNALS
    return table


def column(name, stage, *urls):
    return measured(stage, *urls)[name].to_pylist()


def listed(tmp_path, name, *lines):
    (tmp_path / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return str(tmp_path / name)


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        # RFC 3986, sections 6.2.2.1 to 6.2.3
        ("HTTP://www.EXAMPLE.com/", "http://www.example.com/"),
        ("http://example.com/a%c2%b1b", "http://example.com/a%C2%B1b"),
        ("http://example.com/%7Esmith/%2e%2E/x%2Fy", "http://example.com/x%2Fy"),
        ("http://example.com", "http://example.com/"),
        ("http://example.com:/", "http://example.com/"),
        ("http://example.com:80/", "http://example.com/"),
        ("https://example.com:443/", "https://example.com/"),
        ("https://example.com:80/", "https://example.com:80/"),
        ("ftp://example.com:0021/", "ftp://example.com/"),
        # section 5.2.4, its two examples and the ends of a path
        ("http://e.org/a/b/c/./../../g", "http://e.org/a/g"),
        ("http://e.org/mid/content=5/../6", "http://e.org/mid/6"),
        ("http://e.org/../../g", "http://e.org/g"),
        ("http://e.org/a/.", "http://e.org/a/"),
        ("http://e.org/a/..", "http://e.org/"),
        ("http://e.org/.a/b..", "http://e.org/.a/b.."),
        # what comes on top
        ("http://user:secret@e.org/", "http://e.org/"),
        ("http://user:sec@ret@e[.org:x/a@b?c#d", "http://e[.org:x/a@b?c"),
        ("http://e.org./a#b?c", "http://e.org/a"),
        ("http://bücher.example/straße?q=ü", "http://xn--bcher-kva.example/stra%C3%9Fe?q=%C3%BC"),
        ("http://e.org/?b=2&a=2&&a=1&c", "http://e.org/?a=2&a=1&b=2&c"),
        ("http://e.org/?utm_source=x&UTM_Medium=y&id=7&fbclid=z&gclid", "http://e.org/?id=7"),
        ("http://e.org/?utm_source=x", "http://e.org/"),
        (" \thttp://e.org/a b\n", "http://e.org/a%20b"),
        ("http://e.org/100%", "http://e.org/100%25"),
        ("http://[2001:DB8::A]:80/", "http://[2001:db8::a]/"),
        ("//e.org/a", "http://e.org/a"),
        ("e.org/a", "http://e.org/a"),
        ("localhost:8080/a", "http://localhost:8080/a"),
    ],
)
def test_the_normal_form(url, expected):
    assert str(normalise_url(url)) == expected


@pytest.mark.parametrize(
    "url", ["", "mailto:a@e.org", "/a/b", "http://", "http:///a", "http://e.org:x/", f"http://{'a.' * 200}org/", "#a"]
)
def test_what_has_no_host(url):
    assert normalise_url(url).host is None
    row = measured(UrlRules(), url).to_pylist()[0]
    assert (row["url_host"], row["url_domain"], row["url_blocked"]) == (None, None, False)


PIECES = st.sampled_from([*"/.aB%?&=#@[]üß:\0", "http:", "https:", "//", "..", "%7e", "%2F", "%5b", ":80", "utm_x"])


@given(st.one_of(st.text(), st.lists(PIECES).map("".join)))
def test_the_normal_form_is_its_own_normal_form(url):
    once = normalise_url(url)
    assert str(normalise_url(str(once))) == str(once)
    assert str(once).isascii()


def test_hosts_and_registered_domains():
    urls = [
        "https://news.Example.co.uk/x",
        "http://10.0.0.1/",
        "http://localhost/",
        "http://[::1]/",
        "http://me.blogspot.com",
    ]
    assert column("url_host", UrlRules(), *urls) == [
        "news.example.co.uk",
        "10.0.0.1",
        "localhost",
        "[::1]",
        "me.blogspot.com",
    ]
    assert column("url_domain", UrlRules(), *urls) == ["example.co.uk", None, None, None, "blogspot.com"]


def test_a_document_without_a_url_has_nulls_and_is_kept(tmp_path):
    stage = UrlRules(block=(listed(tmp_path, "b", "example.com"),))
    table = measured(stage, None, "http://example.com/", None)
    assert set(table.slice(0, 1).to_pylist()[0].values()) == {None}
    found = Filter((Rule(rules="refinedweb_url@paper"),)).annotate(table)
    assert found["drop"].to_pylist() == [None, "refinedweb_url.url_blocked", None]
    assert measured(stage).num_rows == 0


@pytest.mark.long
@pytest.mark.parametrize(
    ("entry", "blocked", "free"),
    [
        (
            "example.com",
            "example.com http://a.b.EXAMPLE.com:8080/x https://example.com./",
            "http://notexample.com/ http://example.com.org/ http://e.org/example.com",
        ),
        ("*.Example.com", "http://a.example.com/", "http://example.org/"),
        ("www.example.com", "http://www.example.com/", "http://example.com/"),
        ("xxx", "http://any.xxx/", "http://xxx.org/"),
        ("0.0.1.2", "http://0.0.1.2/x", "http://1.2/"),
        ("1.2", "http://1.2/", "http://0.0.1.2/"),
        ("bücher.example", "http://xn--bcher-kva.example/", "http://bucher.example/"),
        (
            "http://e.org/A/b/",
            "https://www.e.org/a/B http://e.org/a/b/c?d http://e.org/a/./b",
            "http://e.org/a http://e.org/a/bc http://x.e.org/a/b",
        ),
        ("www.e.org/", "http://e.org/x http://www.e.org", "http://x.e.org/"),
        (
            "e.org/a?x=1&b=2",
            "http://e.org/a?b=2&x=1 http://e.org/a/?b=2&x=1&utm_id=3",
            "http://e.org/a http://e.org/a?b=2 http://e.org/a/c?b=2&x=1",
        ),
        ("e.org?x=1", "http://e.org/?x=1", "http://e.org/"),
    ],
)
def test_block_lists(tmp_path, entry, blocked, free):
    other = [f"other{number}.example/{'deep/' * number}" for number in range(9)]
    stage = UrlRules(block=(listed(tmp_path, "list", "# a comment", "", *other, entry),))
    expected = [True] * len(blocked.split()) + [False] * len(free.split())
    assert column("url_blocked", stage, *blocked.split(), *free.split()) == expected


def test_lists_in_the_layout_of_ut1(tmp_path):
    (tmp_path / "ut1" / "adult").mkdir(parents=True)
    listed(tmp_path / "ut1" / "adult", "domains", "bad.example")
    (tmp_path / "ut1" / "adult" / "urls").write_bytes(b"\xef\xbb\xbfhost.example/caf\xe9\r\nhost.example/worse\r\n")
    listed(tmp_path / "ut1" / "adult", "usage", "this is no list")
    stage = UrlRules(block=(str(tmp_path / "ut1"),))
    urls = ["http://a.bad.example/", "http://host.example/worse/1", "http://host.example/better"]
    assert column("url_blocked", stage, *urls) == [True, True, False]
    assert stage.depends()["block[0] adult/domains xxh3_128"] == file_checksum(tmp_path / "ut1" / "adult" / "domains")
    assert not any("usage" in name for name in stage.depends())


@pytest.mark.parametrize(
    "entry",
    ["0.0.0.0 bad.example", "||bad.example^", "bad.example,1", "/path", "mailto:x@y.z", "www", "*.www.", "www./x"],
)
def test_lines_of_other_formats_are_refused(tmp_path, entry):
    path = listed(tmp_path, "list", "good.example", entry)
    with pytest.raises(UserError, match="list:2: neither a domain nor a URL") as error:
        UrlRules(block=(path,)).setup()
    assert "bad" not in str(error.value)


NAMES = st.lists(st.sampled_from(["a", "b", "xn--c", "com", "org"]), min_size=1, max_size=4).map(".".join)


@given(st.lists(NAMES, max_size=6), st.lists(NAMES, max_size=12))
def test_domains_against_their_definition(tmp_path_factory, entries, hosts):
    path = listed(tmp_path_factory.mktemp("lists"), "list", *entries)
    expected = [any(f".{host}".endswith(f".{entry}") for entry in entries) for host in hosts]
    assert load_block_lists([path]).blocks(normalise_url(host) for host in hosts).tolist() == expected


def test_deep_urls_cost_no_more_than_the_list_is_deep(tmp_path):
    stage = UrlRules(block=(listed(tmp_path, "list", "e.org/a/b"),))
    long = "http://e.org/a/b" + "/c" * 200_000
    assert column("url_blocked", stage, long, long.replace("/b", "/d")) == [True, False]


def test_words(tmp_path):
    stage = UrlRules(
        strict_words=(listed(tmp_path, "strict", "badword", "worse-word"),),
        hard_words=(listed(tmp_path, "hard", "Hard", "härter"),),
        soft_words=(listed(tmp_path, "soft", "soft1", "soft2", "soft3"),),
    )
    urls = {  # strict, hard, soft
        "http://ba.dwo-rd.com/any/bar": (1, 0, 0),
        "http://e.org/xbadwordy/worsewords": (2, 0, 0),
        "http://www.foo.hard-bar.com": (0, 1, 0),
        "http://e.org/hardly/HARD_%68ard": (0, 1, 0),
        "http://e.org/h%C3%A4rter": (0, 1, 0),
        "http://www.soft1-bar-soft2.com/soft1": (0, 0, 2),
        "http://e.org/soft12": (0, 0, 0),
        "http://e.org/a%20soft3%20b": (0, 0, 1),
    }
    rows = measured(stage, *urls).to_pylist()
    assert [tuple(row[f"url_{kind}_words"] for kind in ("strict", "hard", "soft")) for row in rows] == list(
        urls.values()
    )
    drops = Filter((Rule(rules="refinedweb_url@paper"),)).annotate(measured(stage, *urls))["drop"].to_pylist()
    strict, hard, soft = (f"refinedweb_url.url_{kind}_words" for kind in ("strict", "hard", "soft"))
    assert drops == [strict, strict, hard, hard, hard, soft, None, None]


def test_many_strict_words(tmp_path):
    words = [f"word{number}x" for number in range(4500)]
    stage = UrlRules(strict_words=(listed(tmp_path, "strict", *words),))
    urls = [f"http://e.org/word{number}/x" for number in (0, 1999, 2000, 4499, 4500)]
    assert column("url_strict_words", stage, *urls) == [1, 1, 1, 1, 0]


@pytest.mark.parametrize("word", ["two words", "---"])
def test_words_that_never_match_are_refused(tmp_path, word):
    with pytest.raises(UserError, match=r"hard:1: . words; expected one"):
        UrlRules(hard_words=(listed(tmp_path, "hard", word),)).setup()


def test_lists_that_are_not_there(tmp_path):
    with pytest.raises(ConfigError, match=r"c.yaml: block\[0\]: got 'nowhere', expected a file"):
        parse(UrlRules, {"block": ["nowhere"]}, "c.yaml")
    with pytest.raises(ConfigError, match="expected a file with one entry per line or a directory"):
        parse(UrlRules, {"block": [str(tmp_path)]}, "c.yaml")
    with pytest.raises(ConfigError, match="hard_words"):
        parse(UrlRules, {"hard_words": [str(tmp_path)]}, "c.yaml")


def test_lists_are_known_by_their_contents(tmp_path):
    first, second = (listed(tmp_path, name, "bad.example") for name in ("one", "two"))
    stage = UrlRules(block=(first,))
    assert stage.depends() == UrlRules(block=(second,)).depends()
    assert {"block", "strict_words", "hard_words", "soft_words"} == set(
        stage.paths
    )  # which are no part of the identity
    stage.setup()
    listed(tmp_path, "one", "worse.example")
    assert UrlRules(block=(first,)).depends() != stage.depends()
    with pytest.raises(UserError, match="a list changed after the build was planned"):
        pickle.loads(pickle.dumps(stage)).setup()


def test_rows_do_not_depend_on_neighbouring_rows(tmp_path):
    stage = UrlRules(block=(listed(tmp_path, "list", "b.org", "a.com/x"),), soft_words=(listed(tmp_path, "soft", "x"),))
    urls = [None, "http://a.com/x/y", "http://c.b.org/", "", "http://a.com/X"] * 3
    alone = pa.concat_tables([measured(stage, url) for url in urls])
    assert measured(stage, *urls).equals(alone)
