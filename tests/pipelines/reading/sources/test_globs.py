import pytest

from pipelines.reading.sources.globs import covers, matches, may_contain


@pytest.mark.parametrize(
    ("pattern", "path", "expected"),
    [
        ("*.py", "a.py", True),
        ("*.py", "b/a.py", False),
        ("**/*.py", "a.py", True),
        ("**/*.py", "b/c/a.py", True),
        ("**", "b/c/a.py", True),
        ("a/**", "a/b/c", True),
        ("a/**", "a", False),
        ("a/**/c", "a/c", True),
        ("a/**/c", "a/x/y/c", True),
        ("**", ".git/config", False),
        ("**/*", "a/.hidden", False),
        (".git/*", ".git/config", True),
        ("*/.hidden", "a/.hidden", True),
        ("a?c", "abc", True),
        ("a?c", "a/c", False),
        ("[ab].txt", "b.txt", True),
        ("[!ab].txt", "c.txt", True),
        ("[!ab].txt", "a.txt", False),
        ("[a-c]x", "bx", True),
        ("[]a].txt", "].txt", True),
        ("[!]a].txt", "b.txt", True),
        ("[!]a].txt", "].txt", False),
        ("x[!a]y", "x/y", False),
        ("x[+-9]y", "x/y", False),
        ("x[+-9]y", "x5y", True),
        ("[!]", "[!]", True),
        ("a[.txt", "a[.txt", True),
        ("a+b(1).txt", "a+b(1).txt", True),
        ("*", "line\nbreak", True),
        ("?", "\udcff", True),
        ("**", "d//b.txt", True),
        ("**", "/b.txt", True),
        ("**/*.txt", "d//b.txt", True),
        ("d/**", "d//b.txt", True),
        ("d/**/b.txt", "d//b.txt", True),
        ("**", "d//.b.txt", False),
    ],
)
def test_matches_as_a_shell_does(pattern: str, path: str, expected: bool) -> None:
    assert matches(path, (pattern,)) is expected


def test_walk_enters_only_directories_that_can_match() -> None:
    assert may_contain("a", ("a/*.txt",))
    assert not may_contain("b", ("a/*.txt",))
    assert not may_contain("a/b", ("a/*.txt",))
    assert may_contain("a/b/c", ("a/**/x",))
    assert not may_contain("a", ("*.txt",))
    assert covers("a/b", ("**/*.txt", ".c/*"), ("*/b/**",))
    assert not covers("a", ("**/*.txt",), ("a/*",))
    assert not covers("a", ("a/.b/*",), ("a/**",))
