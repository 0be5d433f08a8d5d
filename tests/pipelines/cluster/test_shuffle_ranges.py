"""Reads of a shuffle: exact ranges, few requests, and no damaged data."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from gristmill.errors import CorruptFileError, UserError
from gristmill.storage import remote as remote_module
from gristmill.storage.cache import lookup
from gristmill.storage.parsing import parse_location
from gristmill.storage.remote import Remote, read_url, stat_url
from pipelines.cluster import shuffle
from pipelines.cluster.shuffle import gather_rows, scatter_rows
from pipelines.contracts.manifest import StepOutput

ROWS, PARTITIONS, FILES = 2000, 12, 5


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRISTMILL_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def answers(s3, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """Return a list that gets, for every request that the store answers, the method and the bytes read (0
    unless it is a `get_object`).
    """
    found: list[tuple[str, int]] = []
    store = remote_module._store("s3", s3.remote)
    call = store._call_s3

    async def counted(method, *words, **options):
        answer = await call(method, *words, **options)
        found.append((method, answer.get("ContentLength", 0) if method == "get_object" else 0))
        return answer

    monkeypatch.setattr(store, "_call_s3", counted)
    return found


def write(out: StepOutput, seed: int = 0, partitions: int = PARTITIONS) -> tuple[list, list[pa.Table]]:
    tables, files = [], []
    for number in range(FILES):
        random = np.random.default_rng(seed + number)
        table = pa.table({"p": random.integers(0, partitions - 1, ROWS), "n": random.integers(0, 1 << 60, ROWS)})
        tables.append(table)
        files.append(out.write(f"work/{number}.arrow", scatter_rows(table, table["p"].to_numpy(), partitions)))
    return files, tables


def test_a_partition_costs_its_own_bytes(s3, tmp_path: Path, answers) -> None:
    out = StepOutput(parse_location(f"s3://bucket/{tmp_path.name}", s3.remote), "step")
    files, tables = write(out)
    for file in files:
        lookup(file.xxh3_128).unlink()
    answers.clear()
    rows = gather_rows(out.directory, files, 3).to_pylist()
    assert rows == [row for table in tables for row in table.to_pylist() if row["p"] == 3]
    assert {method for method, _ in answers} == {"get_object"}
    assert len(answers) == 4 + 2 * (FILES - 1)  # the first file says what all have in common
    payload = sum(size for _, size in answers)
    assert payload < sum(file.bytes for file in files) / (PARTITIONS - 1) + FILES * (500 + 24 * PARTITIONS)
    assert payload < sum(file.bytes for file in files) / 6
    answers.clear()
    assert gather_rows(out.directory, files, PARTITIONS - 1).num_rows == 0  # nobody's
    assert len(answers) == 3 + (FILES - 1)


@pytest.mark.long
def test_entries_far_from_the_end_are_requested_singly(s3, tmp_path: Path, answers, monkeypatch) -> None:
    monkeypatch.setattr(shuffle, "_NEAR", 24)
    monkeypatch.setattr(shuffle, "_FILES", 2)
    monkeypatch.setattr(remote_module, "_AT_ONCE", 3)
    for place in (tmp_path, parse_location(f"s3://bucket/{tmp_path.name}", s3.remote)):
        out = StepOutput(place, "step")
        files, tables = write(out)
        if place is not tmp_path:
            for file in files:
                lookup(file.xxh3_128).unlink()
            answers.clear()
        for partition in (0, PARTITIONS - 2, PARTITIONS - 1):
            rows = [row for table in tables for row in table.to_pylist() if row["p"] == partition]
            assert gather_rows(out.directory, files, partition).to_pylist() == rows
    assert sum(size for _, size in answers) < sum(file.bytes for file in files) / 3


@pytest.mark.long
@pytest.mark.parametrize(
    ("remote", "place"),
    [*((False, place) for place in (10, 900, -3, -30, -24 * PARTITIONS, None, "gone")), (True, 900), (True, "gone")],
)
def test_a_damaged_file_among_others_is_noticed(s3, tmp_path: Path, remote: bool, place: int | str | None) -> None:
    root = parse_location(f"s3://bucket/{tmp_path.name}", s3.remote) if remote else tmp_path
    out = StepOutput(root, "step")
    files, _ = write(out)
    path = out.directory / files[3].path
    data = bytearray(path.read_bytes())
    if place is None:
        del data[-7:]
    elif isinstance(place, int):
        data[place] ^= 64
    if remote:
        for file in files:
            lookup(file.xxh3_128).unlink()
        s3.store.pipe_file(path.url, bytes(data))
    else:
        path.write_bytes(data)
    if place == "gone":
        path.unlink()
    # The byte at 10 is of the schema, which is read of the first file alone: there the others are checked against it.
    damaged = [partition for partition in range(PARTITIONS) if not _whole(out, files, partition)]
    assert damaged if place != 10 else not damaged


def _whole(out: StepOutput, files, partition: int) -> bool:
    try:
        gather_rows(out.directory, files, partition)
    except CorruptFileError as error:
        return "3.arrow: is not what was written" not in str(error)
    return True


def test_files_that_differ_in_partitions_or_schema_are_read_by_themselves(tmp_path: Path) -> None:
    out = StepOutput(tmp_path, "step")
    table = pa.table({"n": [1, 2, 3]})
    noted = table.replace_schema_metadata({"a": "b"})
    files = [
        out.write("a.arrow", scatter_rows(table, np.array([0, 1, 2]), 3)),
        out.write("b.arrow", scatter_rows(table, np.array([0, 1, 4]), 5)),
        out.write("c.arrow", scatter_rows(noted, np.array([1, 1, 2]), 3)),
    ]
    assert [gather_rows(out.directory, files, partition)["n"].to_pylist() for partition in (0, 1, 2)] == [
        [1, 1], [2, 2, 1, 2], [3, 3]
    ]  # fmt: skip


def test_a_small_file_is_one_request(s3, tmp_path: Path, answers) -> None:
    url = f"s3://bucket/{tmp_path.name}/f"
    s3.store.pipe_file(url, b"12345")
    answers.clear()
    assert read_url(url, s3.remote) == b"12345"
    assert answers == [("get_object", 5)]


def test_a_name_server_is_queried_once_per_store(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def resolve(host, port, **options):
        asked.append(host)
        address = {"public.example": "93.184.215.14", "inner.example": "10.0.0.1"}[host]
        return [(2, 1, 6, "", (address, port))]

    class Store:
        base = "https://public.example/storage/v1/"

        def _strip_protocol(self, url: str) -> str:
            return url

        def info(self, path: str) -> dict:
            return {"size": 1, "name": path}

    monkeypatch.setattr(remote_module, "_public", set())
    monkeypatch.setattr(remote_module.socket, "getaddrinfo", resolve)
    monkeypatch.setattr(remote_module, "_store", lambda scheme, remote: Store())
    for number in range(5):
        assert stat_url(f"gs://bucket/{number}", Remote()) is not None
    assert asked == ["public.example"]
    Store.base = "https://inner.example/storage/v1/"
    for _ in range(2):
        with pytest.raises(UserError, match=r"10\.0\.0\.1, which is not public"):
            stat_url("gs://bucket/0", Remote())
    assert asked == ["public.example", "inner.example", "inner.example"]
