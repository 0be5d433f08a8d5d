import errno
import gzip
import io
import random
import struct
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard

from gristmill.errors import StorageError
from pipelines.reading.entries.files import SourceFile

MODES = {".tar": "w", ".tar.gz": "w:gz", ".tgz": "w:gz", ".tar.bz2": "w:bz2", ".tar.xz": "w:xz"}


def tar(*members: tuple[str, bytes], mode: str = "w", **options: object) -> bytes:
    sink = io.BytesIO()
    with tarfile.open(fileobj=sink, mode=mode, **options) as archive:  # type: ignore[call-overload]
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return sink.getvalue()


def zipped(*members: tuple[str, bytes], compression: int = zipfile.ZIP_DEFLATED) -> bytes:
    sink = io.BytesIO()
    with zipfile.ZipFile(sink, "w", compression) as archive:
        for name, data in members:
            archive.writestr(name, data)
    return sink.getvalue()


@pytest.mark.parametrize("suffix", MODES)
def test_tar_members_are_documents(read: Callable, suffix: str) -> None:
    found = read("a" + suffix, tar(("d/x.txt", b"one"), ("d/y.txt", b"two"), mode=MODES[suffix]))
    assert (found.texts, found.bad) == (["one", "two"], [])
    assert found.paths == [f"a{suffix}!d/x.txt", f"a{suffix}!d/y.txt"]


def test_tar_under_zstd_and_tar_without_a_telling_name(read: Callable) -> None:
    data = tar(("x", b"one"))
    assert read("a.tar.zst", zstandard.compress(data)).texts == ["one"]
    assert read("a", data).texts == ["one"]
    assert read("a.tar", tar(("x", b"one"), format=tarfile.USTAR_FORMAT)).texts == ["one"]


@pytest.mark.parametrize("name", ["a.zip", "a.whl", "a"])
def test_zip_members_are_documents(read: Callable, name: str) -> None:
    found = read(name, zipped(("d/", b""), ("d/x.txt", b"one"), ("y.txt", b"two")))
    assert (found.texts, found.bad) == (["one", "two"], [])
    assert found.paths == [f"{name}!d/x.txt", f"{name}!y.txt"]


@pytest.mark.parametrize("make", [tar, zipped])
def test_only_wanted_members(read: Callable, make: Callable) -> None:
    data = make(("p-1/texts/x.txt", b"one"), ("p-1/setup.py", b"code"), ("p-1/texts/y.md", b"md"))
    assert read("a", data, members=("*/texts/*.txt",)).texts == ["one"]
    assert read("a", data, members=("**/*.txt", "**/*.md")).texts == ["one", "md"]
    nothing = read("a", data, members=("nothing",))
    assert (nothing.texts, nothing.bad, nothing.paths) == ([], [], ["a"])


@pytest.mark.parametrize("make", [tar, zipped])
@pytest.mark.parametrize("name", ["../../x", "/etc/passwd", "a\\b", "a!b#3", "é\nx"])
def test_a_name_is_only_a_name(read: Callable, make: Callable, name: str, tmp_path: Path) -> None:
    before = sorted(tmp_path.rglob("*"))
    found = read("a", make((name, b"text")))
    assert (found.texts, found.paths) == (["text"], [f"a!{name}"])
    assert [path for path in sorted(tmp_path.rglob("*")) if path not in before] == [
        tmp_path / "in",
        tmp_path / "in" / "a",
    ]


def test_a_repeated_name_continues_the_count(read: Callable) -> None:
    found = read(
        "a.tar", tar(("x", b'{"text":"1"}\n{"text":"2"}\n'), ("x", b'{"text":"3"}\nnot json\n')), format="jsonl"
    )
    assert (found.texts, found.bad) == (["1", "2", "3"], [("a.tar!x", 3, "not_json", 8)])


def test_links_and_devices_are_counted_and_never_followed(read: Callable, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    sink = io.BytesIO()
    with tarfile.open(fileobj=sink, mode="w") as archive:
        for name, kind in [
            ("s", tarfile.SYMTYPE),
            ("h", tarfile.LNKTYPE),
            ("f", tarfile.FIFOTYPE),
            ("c", tarfile.CHRTYPE),
        ]:
            info = tarfile.TarInfo(name)
            info.type, info.linkname = kind, str(tmp_path / "secret")
            archive.addfile(info)
        info = tarfile.TarInfo("directory")
        info.type = tarfile.DIRTYPE
        archive.addfile(info)
    found = read("a.tar", sink.getvalue())
    assert found.texts == []
    assert found.bad == [(f"a.tar!{name}", 0, "not_regular", None) for name in "shfc"]
    link = zipfile.ZipInfo("link")
    link.external_attr = 0o120777 << 16
    with zipfile.ZipFile(sink := io.BytesIO(), "w") as archive:
        archive.writestr(link, str(tmp_path / "secret"))
    assert read("a.zip", sink.getvalue()).bad == [("a.zip!link", 0, "not_regular", None)]


def test_compressed_members_are_decoded_and_archives_in_archives_are_not_opened(read: Callable) -> None:
    inner = zipped(("x", b"one"))
    data = tar(("x.txt.gz", gzip.compress(b"one")), ("y.zip", inner), ("z.tar.gz", gzip.compress(tar(("x", b"two")))))
    found = read("a.tar", data)
    assert found.texts == ["one"]
    assert [(path, reason) for path, _, reason, _ in found.bad] == [
        ("a.tar!y.zip", "nested_archive"),
        ("a.tar!z.tar.gz", "nested_archive"),
    ]
    assert read("a.zip.gz", gzip.compress(inner)).bad == [("a.zip.gz", 0, "nested_archive", None)]


def test_encrypted_member(read: Callable) -> None:
    data = bytearray(zipped(("x", b"one"), ("y", b"two")))
    local, central = data.find(b"PK\x03\x04"), data.find(b"PK\x01\x02")
    data[local + 6] |= 1
    data[central + 8] |= 1
    found = read("a.zip", bytes(data))
    assert (found.texts, found.bad) == (["two"], [("a.zip!x", 0, "encrypted", None)])


def test_unknown_compression_of_a_member(read: Callable) -> None:
    data = bytearray(zipped(("x", b"one"), ("y", b"two")))
    data[data.find(b"PK\x03\x04") + 8] = data[data.find(b"PK\x01\x02") + 10] = 99
    found = read("a.zip", bytes(data))
    assert (found.texts, [bad[2] for bad in found.bad]) == (["two"], ["unsupported_compression"])


def test_zip_of_a_later_version_and_a_member_without_a_name(read: Callable) -> None:
    data = bytearray(zipped(("x", b"one")))
    data[data.find(b"PK\x01\x02") + 6] = 99
    assert read("a.zip", bytes(data)).bad == [("a.zip", 0, "corrupt", None)]
    with zipfile.ZipFile(sink := io.BytesIO(), "w") as archive:
        archive.writestr(zipfile.ZipInfo("\0x"), b"one")  # a name ends at its first NUL
    found = read("a.zip", sink.getvalue())
    assert (found.texts, found.paths) == (["one"], ["a.zip!"])


def test_wrong_checksum_of_a_member(read: Callable) -> None:
    data = bytearray(zipped(("x", b"one" * 100), ("y", b"two"), compression=zipfile.ZIP_STORED))
    data[data.find(b"oneone")] ^= 1
    found = read("a.zip", bytes(data))
    assert (found.texts, [bad[2] for bad in found.bad]) == (["two"], ["corrupt"])


def test_truncated_zip_has_no_directory(read: Callable) -> None:
    assert read("a.zip", zipped(("x", b"one"))[:-10]).bad == [("a.zip", 0, "truncated", None)]


def test_an_io_error_at_any_read_of_a_zip_is_no_damage(read: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    data = zipped(("x", b"one"), ("y", b"two"))

    class Failing(io.BytesIO):
        reads, fails_at = 0, 0

        def read(self, size: int | None = -1) -> bytes:
            Failing.reads += 1
            if Failing.reads == Failing.fails_at:
                raise OSError(errno.EIO, "Input/output error")
            return super().read(size)

    monkeypatch.setattr(SourceFile, "handle", lambda file: Failing(data))
    assert read("a.zip", data).texts == ["one", "two"]
    assert Failing.reads > 5
    for number in range(1, Failing.reads + 1):
        Failing.reads, Failing.fails_at = 0, number
        with pytest.raises(StorageError, match=r"a\.zip: cannot be read \(Input/output error\)"):
            read("a.zip", data)


def test_zip_whose_records_lie_before_the_file(read: Callable) -> None:
    locator = struct.pack("<4sLQL", b"PK\6\7", 0, 0, 1)  # of the records of zip64, which take 56 bytes
    data = b"PK\3\4" + locator + b"PK\5\6".ljust(22, b"\0")
    assert read("a.zip", data).bad == [("a.zip", 0, "truncated", None)]


def test_zip_whose_members_lie_before_the_file(read: Callable) -> None:
    data = bytearray(zipped(("x", b"one"), ("y", b"two")))
    data[-5] ^= 1  # of the position of the directory, which zipfile corrects, and those of the members with it
    assert read("a.zip", bytes(data)).bad == [("a.zip!x", 0, "corrupt", None), ("a.zip!y", 0, "corrupt", None)]


MEMBERS = [(f"m{i}.jsonl", b"".join(b'{"text":"%d-%d"}\n' % (i, j) for j in range(200))) for i in range(5)]
WHOLE = [f"{i}-{j}" for i in range(5) for j in range(200)]


@pytest.mark.long
@pytest.mark.parametrize("mode", ["w", "w:gz", "w:xz"])
def test_truncated_tar_keeps_what_came_before(read: Callable, mode: str) -> None:
    data = tar(*MEMBERS, mode=mode)
    for cut in sorted({*random.Random(0).sample(range(1, len(data)), 25), 512, len(data) - 1}):
        found = read("a.tar" + {"w": "", "w:gz": ".gz", "w:xz": ".xz"}[mode], data[:cut], format="jsonl")
        assert found.texts == WHOLE[: len(found.texts)]
        if mode != "w" or cut <= len(data.rstrip(b"\0")):
            assert [bad[2] for bad in found.bad] in (["truncated"], ["wrong_suffix"])
            assert (
                mode != "w" or len(found.texts) >= (cut - 6 * 512 - 20) // 17 - 80
            )  # nothing but the last line is lost


def test_tar_without_its_end_mark_is_truncated(read: Callable) -> None:
    whole = tar(("x", b"one"))
    assert read("a.tar", whole[:1024]).bad == [("a.tar", 0, "truncated", None)]
    assert read("a.tar", whole[:1024] + bytes(512)).bad == []


def test_bytes_after_the_end_mark(read: Callable) -> None:
    whole = tar(("x", b"one"))
    found = read("a.tar", whole + tar(("y", b"two")))
    assert (found.texts, found.bad) == (["one"], [("a.tar", 0, "trailing_bytes", None)])
    damaged = bytearray(gzip.compress(whole))
    damaged[-8] ^= 1  # the checksum of gzip
    found = read("a.tar.gz", bytes(damaged))
    assert (found.texts, found.bad) == (["one"], [("a.tar.gz", 0, "corrupt", None)])


def test_damaged_header_between_members_is_not_the_end(read: Callable) -> None:
    data = bytearray(tar(("x", b"one"), ("y", b"two"), ("z", b"three")))
    data[1024 + 150] ^= 0xFF  # within the checksum of y's header
    found = read("a.tar", bytes(data))
    assert (found.texts, found.bad) == (["one"], [("a.tar", 0, "corrupt", None)])
    assert read("a.tar", b"no archive at all" * 100).bad == [("a.tar", 0, "corrupt", None)]


def test_huge_extended_header_is_refused(read: Callable) -> None:
    info = tarfile.TarInfo("././@LongLink")
    info.type, info.size = tarfile.GNUTYPE_LONGNAME, 1 << 30
    found = read("a.tar", info.tobuf(tarfile.GNU_FORMAT) + bytes(4096))
    assert [bad[2] for bad in found.bad] == ["corrupt"]


@pytest.mark.parametrize("members", [(), ("nothing",)])
def test_a_size_that_no_file_has(read: Callable, members: tuple[str, ...]) -> None:
    header = tarfile.TarInfo("x")
    header.size = 1 << 60
    found = read("a.tar", header.tobuf(tarfile.GNU_FORMAT) + bytes(4096), members=members)
    assert (found.texts, [bad[2] for bad in found.bad]) == ([], ["truncated"])


@pytest.mark.long
def test_random_damage_never_raises(read: Callable) -> None:
    chance = random.Random(3)
    for make, name in [(tar, "a.tar"), (zipped, "a.zip")]:
        whole = make(*MEMBERS)
        for _ in range(30):
            data = bytearray(whole)
            for _ in range(chance.randrange(1, 4)):
                data[chance.randrange(len(data))] = chance.randrange(256)
            read(name, bytes(data), format="jsonl", max_decoded_bytes=1 << 24)


def test_bombs_stop_at_the_limit(read: Callable) -> None:
    zeros = bytes(5_000_000)
    for name, data in [
        ("a.zip", zipped(("x", zeros), ("y", b"two"))),
        ("a.tar.gz", tar(("x", zeros), ("y", b"two"), mode="w:gz")),
    ]:
        found = read(name, data, max_decoded_bytes=1_000_000)
        assert found.texts == []
        assert {bad[2] for bad in found.bad} == {"decoded_limit"}
    found = read("a.zip", zipped(("x", zeros), ("y", b"two")), max_document_bytes=1_000)
    assert (found.texts, found.bad) == (["two"], [("a.zip!x", 0, "oversized", 5_000_000)])


def test_a_file_decodes_to_a_thousand_times_its_size_at_most(read: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipelines.reading.entries.decompress._FREE_BYTES", 1_000_000)
    bomb = zstandard.compress(bytes(50_000_000))
    assert 1_000 * len(bomb) < 10_000_000
    assert read("a.zst", bomb).bad == [("a.zst", 0, "decoded_limit", None)]
    assert read("b.zst", zstandard.compress(b"x" * 900_000)).texts == ["x" * 900_000]
    dense = b"".join(b"%d " % (number * 7919 % 1_000_003) for number in range(300_000))
    assert len(dense) > 1_900_000
    assert read("c.zst", zstandard.compress(dense)).texts == [dense.decode()]
