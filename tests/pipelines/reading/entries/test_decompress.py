import bz2
import gzip
import lzma
import random
from collections.abc import Callable, Iterator

import pytest
import zstandard

from pipelines.reading.entries.decompress import DecodeBudget, decompress, peek
from pipelines.reading.entries.reasons import BrokenInput

TEXT = b"".join(b"line %d of some text that compresses\n" % i for i in range(10_000))
NOISE = random.Random(1).randbytes(100_000)
CODECS: dict[str, tuple[str, Callable[[bytes], bytes]]] = {
    "gzip": (".gz", lambda data: gzip.compress(data, mtime=0)),
    "bz2": (".bz2", bz2.compress),
    "xz": (".xz", lzma.compress),
    "zstd": (".zst", zstandard.ZstdCompressor().compress),
}


def chunked(data: bytes, size: int = 1000) -> Iterator[bytes]:
    return (data[i : i + size] for i in range(0, len(data), size))


def take(stream: Iterator[bytes]) -> tuple[bytes, str | None]:
    held = []
    try:
        for chunk in stream:
            held.append(chunk)
    except BrokenInput as error:
        return b"".join(held), error.reason
    return b"".join(held), None


def decode(data: bytes, name: str = "a", limit: int = 1 << 40, size: int = 1000) -> tuple[bytes, str | None]:
    head, stream, _ = decompress(name, chunked(data, size), DecodeBudget(limit))
    found, reason = take(stream)
    assert found.startswith(head) or reason in ("wrong_suffix", "nested_archive")
    return found, reason


@pytest.mark.long
@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("size", [1, 7, 1000, 1 << 20])
def test_decoding_does_not_depend_on_chunks(codec: str, size: int) -> None:
    suffix, compress = CODECS[codec]
    data = TEXT[:20_000] if size < 10 else TEXT + NOISE
    assert decode(compress(data), "a" + suffix, size=size) == (data, None)
    assert decode(compress(data), "no_suffix", size=size) == (data, None)


@pytest.mark.parametrize("codec", CODECS)
def test_members_and_frames_follow_each_other(codec: str) -> None:
    _, compress = CODECS[codec]
    assert decode(compress(TEXT) + compress(b"") + compress(NOISE)) == (TEXT + NOISE, None)


def test_padding_after_a_member_and_skippable_frames_are_ignored() -> None:
    assert decode(gzip.compress(b"x") + bytes(5000) + gzip.compress(b"y") + bytes(100)) == (b"xy", None)
    skippable = b"\x50\x2a\x4d\x18" + (8).to_bytes(4, "little") + b"metadata"
    assert decode(skippable + zstandard.compress(b"x")) == (b"x", None)


@pytest.mark.long
@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("share", [0.5, 0.99, 0.9999])
def test_truncation_keeps_what_came_before(codec: str, share: float) -> None:
    suffix, compress = CODECS[codec]
    data = compress(TEXT + NOISE)
    found, reason = decode(data[: int(len(data) * share)], "a" + suffix)
    assert reason == "truncated"
    assert (TEXT + NOISE).startswith(found)
    assert codec != "gzip" or len(found) > len(TEXT)  # the others decode block by block and lose up to one


@pytest.mark.parametrize("codec", CODECS)
def test_second_member_truncated(codec: str) -> None:
    _, compress = CODECS[codec]
    found, reason = decode(compress(TEXT) + compress(NOISE)[:20])
    assert (found[: len(TEXT)], reason) == (TEXT, "truncated")


@pytest.mark.long
@pytest.mark.parametrize("codec", CODECS)
def test_damage_and_trailing_garbage_are_corrupt(codec: str) -> None:
    suffix, compress = CODECS[codec]
    data = bytearray(compress(TEXT + NOISE))
    data[len(data) // 2] ^= 0xFF
    data[len(data) // 2 + 1] ^= 0xFF
    found, reason = decode(bytes(data), "a" + suffix)
    assert reason == "corrupt" or found != TEXT + NOISE  # a zstd frame without checksum cannot tell
    assert decode(compress(TEXT) + b"garbage that is no member") == (TEXT, "corrupt")


@pytest.mark.parametrize("codec", CODECS)
def test_name_that_promises_too_much(codec: str) -> None:
    suffix, _ = CODECS[codec]
    assert decode(b"plain text", "a" + suffix) == (b"", "wrong_suffix")
    assert decode(b"", "a" + suffix) == (b"", "truncated")
    assert decode(b"plain text", "a.txt") == (b"plain text", None)


@pytest.mark.parametrize("codec", CODECS)
def test_bomb_stops_at_the_limit(codec: str) -> None:
    _, compress = CODECS[codec]
    found, reason = decode(compress(bytes(5_000_000)), limit=1_000_000, size=1 << 20)
    assert (len(found), reason) == (1_000_000, "decoded_limit")


def test_no_chunk_at_the_limit_is_empty() -> None:
    """A caller that takes one chunk at a time would take an empty chunk for the end of the stream, and miss
    the error.
    """
    stream = DecodeBudget(4).bound(iter([b"aaaa", b"bbbb"]))
    assert next(stream, b"") == b"aaaa"
    with pytest.raises(BrokenInput, match="decoded_limit"):
        next(stream, b"")


@pytest.mark.long
@pytest.mark.parametrize("codec", ["gzip", "zstd"])
def test_chunks_of_a_bomb_are_bounded(codec: str) -> None:
    _, compress = CODECS[codec]
    _, stream, _ = decompress("a", chunked(compress(bytes(80_000_000)), 1 << 20), DecodeBudget(1 << 40))
    assert max(len(chunk) for chunk in stream) <= 64 << 20


def test_layers_are_limited() -> None:
    assert decode(gzip.compress(gzip.compress(b"x"))) == (b"x", None)
    assert decode(gzip.compress(gzip.compress(gzip.compress(b"x")))) == (b"", "nested_archive")


def test_peek_leaves_the_stream_as_it_was() -> None:
    def broken() -> Iterator[bytes]:
        yield b"ab"
        raise BrokenInput("truncated")

    head, stream = peek(iter([b"ab", b"cd", b"ef"]), 3)
    assert (head, take(stream)) == (b"abcd", (b"abcdef", None))
    head, stream = peek(broken(), 10)
    assert (head, take(stream)) == (b"ab", (b"ab", "truncated"))
    assert take(peek(iter([]), 10)[1]) == (b"", None)
