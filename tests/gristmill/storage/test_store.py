"""Files are either complete or absent, and a changed byte is detected on first access."""

import errno
import io
import os
import tempfile
import threading
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gristmill.errors import CorruptFileError, UserError
from gristmill.host import Host, use_host
from gristmill.storage.disk import LocalPath, read_range
from gristmill.storage.location import FileRecord
from gristmill.storage.parsing import parse_location
from gristmill.storage.remote import _address, _store
from gristmill.storage.store import canonical_json, digest, read_json, write_json


def test_a_writer_that_fails_leaves_nothing(tmp_path):
    def fail(sink):
        sink.write(b"half")
        raise OSError(28, "No space left on device")

    (tmp_path / "kept").write_atomic(b"old")
    with pytest.raises(OSError, match="No space"):
        (tmp_path / "kept").write_atomic(fail)
    assert (tmp_path / "kept").read_bytes() == b"old"
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]


def test_a_directory_is_not_replaced_by_a_file_however_it_is_named(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in (".", "..", str(tmp_path)):
        with pytest.raises(OSError, match=r"directory|busy"):
            LocalPath(name).write_atomic(b"new")
    assert not list(tmp_path.iterdir())


def test_a_directory_that_another_process_creates_and_removes_meanwhile_is_created(tmp_path, monkeypatch):
    mkdir, times = os.mkdir, []

    def overtaken(path, *rest):
        times.append(path)
        if len(times) == 1:
            raise FileExistsError(errno.EEXIST, "File exists", path)
        mkdir(path, *rest)

    monkeypatch.setattr(os, "mkdir", overtaken)
    (tmp_path / "units").mkdir(exist_ok=True)
    assert (tmp_path / "units").is_dir()


def test_a_new_file_is_written_again_if_its_directory_is_removed_meanwhile(tmp_path, monkeypatch):
    place, fsync, removed = tmp_path / "step", LocalPath.fsync, []

    def overtaken(path):
        if path == place and (place / "manifest.json").exists() and not removed:
            removed.append(path)
            place.remove_tree()
        fsync(path)

    monkeypatch.setattr(LocalPath, "fsync", overtaken)
    assert (place / "manifest.json").write_new(b"content")
    assert removed
    assert [(path.name, path.read_bytes()) for path in place.iterdir()] == [("manifest.json", b"content")]


def test_a_directory_is_not_made_of_a_link_that_leads_nowhere(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "nothing")
    with pytest.raises(FileExistsError):
        (tmp_path / "link").mkdir(exist_ok=True)


@pytest.mark.parametrize("content", [b"times", lambda sink: sink.write(b"times")], ids=["bytes", "function"])
def test_a_write_that_fails_once_is_repeated_from_the_start(tmp_path, monkeypatch, content):
    rename, failed = os.rename, []

    def fail(old, new):
        if not failed:
            failed.append(old)
            raise OSError(errno.EIO, "Input/output error")
        rename(old, new)

    monkeypatch.setattr(os, "rename", fail)
    (tmp_path / "a").write_atomic(content)
    assert (tmp_path / "a").read_bytes() == b"times"
    assert len(failed) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


@pytest.mark.parametrize("content", [b"times", lambda sink: sink.write(b"times")], ids=["bytes", "function"])
def test_a_file_whose_attempt_another_process_swept_away_is_written_again(tmp_path, monkeypatch, content):
    """A process that publishes a step also removes the temporary files of another build; several processes may do so."""
    fsync, swept = os.fsync, []

    def sweep(descriptor):
        if len(swept) < 3:
            swept.extend(tmp_path.glob(".*.tmp"))
            swept[-1].unlink()
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", sweep)
    (tmp_path / "run.json").write_atomic(content)
    assert (tmp_path / "run.json").read_bytes() == b"times"
    assert len(swept) == 3


@given(position=st.integers(0, 999), bit=st.integers(0, 7))
def test_every_flipped_bit_is_found(tmp_path_factory, position, bit):
    directory = tmp_path_factory.mktemp("flip")
    (directory / "f").write_atomic(bytes(1000))
    record = directory.record("f")
    assert directory.verify(record) == directory / "f"
    data = bytearray(1000)
    data[position] ^= 1 << bit
    (directory / "f").write_atomic(bytes(data))
    with pytest.raises(CorruptFileError, match=r"f: is .*its manifest recorded"):
        directory.verify(record)


def test_truncated_and_missing_files_are_named(tmp_path):
    (tmp_path / "f").write_atomic(b"12345")
    record = tmp_path.record("f")
    (tmp_path / "f").write_atomic(b"1234")
    with pytest.raises(CorruptFileError, match="is 4 bytes, its manifest recorded 5 bytes"):
        tmp_path.verify(record)
    with pytest.raises(CorruptFileError, match="recorded in its manifest but missing"):
        tmp_path.verify(FileRecord("g", 1, "0"))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda v: st.lists(v) | st.dictionaries(st.text(), v),
    max_leaves=8,
)


@pytest.mark.long
@given(st.dictionaries(st.text().filter(lambda key: key != "checksum"), JSON))
def test_json_round_trip(tmp_path_factory, value):
    path = tmp_path_factory.mktemp("json") / "v.json"
    write_json(path, value)
    found = read_json(path)
    assert found.pop("checksum") == digest(value)
    assert found == value


def test_edited_json_is_refused(tmp_path):
    path = tmp_path / "v.json"
    write_json(path, {"documents": 10})
    path.write_text(path.read_text().replace("10", "11"))
    with pytest.raises(CorruptFileError, match="does not match its own checksum"):
        read_json(path)


def test_equal_values_have_equal_digests_whatever_the_order_of_their_keys():
    assert canonical_json({"b": 1, "a": [2, {"d": 3, "c": 4}]}) == canonical_json({"a": [2, {"c": 4, "d": 3}], "b": 1})


def at_once(calls):
    together, found = threading.Barrier(len(calls)), []

    def call(one):
        together.wait()
        found.append(one())

    threads = [threading.Thread(target=call, args=(one,)) for one in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def written(path, content):
    return content if path.write_new(content) else None


def test_of_several_that_write_a_new_file_one_does(tmp_path):
    for round_ in range(10):
        path = tmp_path / str(round_) / "file"
        contents = [bytes([number]) * 5000 for number in range(6)]
        found = at_once([partial(written, path, content) for content in contents])
        assert [path.read_bytes()] == [content for content in found if content]
        assert [entry.name for entry in path.parent.iterdir()] == ["file"]
        assert not path.write_new(b"later")


def test_file_systems_without_hard_links_have_new_files_too(tmp_path, monkeypatch):
    def refuse(*arguments):
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "link", refuse)
    assert (tmp_path / "file").write_new(b"first")
    assert not (tmp_path / "file").write_new(b"second")
    assert (tmp_path / "file").read_bytes() == b"first"
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


def test_the_service_behind_each_kind_of_store_is_known():
    """gcsfs has the service's URL in `base`, with a path; its `_endpoint` is None by default."""
    google = SimpleNamespace(_endpoint=None, base="https://storage.googleapis.com/storage/v1/")
    assert urlsplit(_address("gs://bucket/x", "gs", google)).hostname == "storage.googleapis.com"
    hub = SimpleNamespace(endpoint="https://huggingface.co")
    assert urlsplit(_address("hf://datasets/a/b", "hf", hub)).hostname == "huggingface.co"
    assert _address("https://a.org/x", "https", None) == "https://a.org/x"


def test_of_several_that_write_a_new_object_one_does(s3, tmp_path):
    path = parse_location(f"s3://bucket/{tmp_path.name}/file", s3.remote)
    contents = [bytes([number]) * 5000 for number in range(4)]
    found = at_once([partial(written, path, content) for content in contents])
    assert [path.read_bytes()] == [content for content in found if content]


def test_a_new_object_whose_response_was_lost_is_this_call_s(s3, tmp_path, monkeypatch):
    """The client library retries, and the second attempt finds the object that the first attempt wrote."""
    path = parse_location(f"s3://bucket/{tmp_path.name}/file", s3.remote)
    store = _store("s3", s3.remote)
    pipe = store.pipe_file

    def twice(*arguments, **named):
        pipe(*arguments, **named)
        return pipe(*arguments, **named)

    with monkeypatch.context() as patch:
        patch.setattr(store, "pipe_file", twice)
        assert path.write_new(b"one")
    assert not path.write_new(b"two")
    assert path.read_bytes() == b"one"


def test_a_prefix_that_another_process_removes_at_the_same_moment_is_gone(s3, tmp_path, monkeypatch):
    path = parse_location(f"s3://bucket/{tmp_path.name}/prefix", s3.remote)
    (path / "file").write_atomic(b"one")
    store = _store("s3", s3.remote)
    remove = store.rm

    def after_another(*arguments, **named):
        remove(*arguments, **named)
        return remove(*arguments, **named)

    with monkeypatch.context() as patch:
        patch.setattr(store, "rm", after_another)
        path.remove_tree()
    assert not path.exists()


def test_an_object_that_cannot_be_removed_is_an_error(s3, tmp_path, monkeypatch):
    """A bulk removal that fails for some objects has the status 200 and a list of errors."""
    path = parse_location(f"s3://bucket/{tmp_path.name}/prefix", s3.remote)
    for name in ("a", "b"):
        (path / name).write_atomic(b"one")
    store = _store("s3", s3.remote)
    call, refused = store._call_s3, []

    async def answer(method, *arguments, **named):
        if method == "delete_objects":
            refused.append(named["Delete"]["Objects"].pop()["Key"])
            return {**await call(method, *arguments, **named), "Errors": [{"Key": refused[0], "Code": "AccessDenied"}]}
        if method == "delete_object" and len(refused) == 1:
            raise PermissionError(named["Key"])
        return await call(method, *arguments, **named)

    with monkeypatch.context() as patch:
        patch.setattr(store, "_call_s3", answer)
        with pytest.raises(UserError, match="access is denied"):
            path.remove_tree()
        assert [f"{tmp_path.name}/prefix/{left.name}" for left in path.iterdir()] == refused
        path.remove_tree()
    assert len(refused) == 2
    assert not path.exists()


@pytest.mark.parametrize("name", ["run[1]", "run?", "run*"])
def test_only_the_prefix_itself_is_removed_whatever_its_characters(s3, tmp_path, name):
    root = parse_location(f"s3://bucket/{tmp_path.name}", s3.remote)
    for directory in ("run1", name):
        for file in (".lease", "step/a", "step/b[1]"):
            (root / directory / file).write_atomic(b"")
    (root / name / ".lease").unlink()
    assert sorted(path.name for path in (root / name).iterdir()) == ["step"]
    (root / name / "step").remove_tree()
    assert not (root / name).exists()
    assert sorted(path.name for path in (root / "run1").glob("*")) == [".lease", "step"]
    assert sorted(path.name for path in (root / "run1").glob("step/*")) == ["a", "b[1]"]


def test_a_store_that_knows_no_condition_keeps_what_is_there(s3, tmp_path, monkeypatch):
    path = parse_location(f"s3://bucket/{tmp_path.name}/file", s3.remote)
    store = _store("s3", s3.remote)
    pipe_file = store.pipe_file

    def without_conditions(*arguments, mode="overwrite"):
        if mode == "create":
            raise OSError(errno.ENOSYS, "A header you provided implies functionality that is not implemented")
        pipe_file(*arguments)

    monkeypatch.setattr(store, "pipe_file", without_conditions)
    assert path.write_new(b"first")
    assert not path.write_new(b"second")
    assert path.read_bytes() == b"first"


def test_a_range_that_the_system_returns_in_pieces_is_read_whole(tmp_path):
    """Linux returns at most 2 GiB less a page for one read, without an error."""

    class Short(io.FileIO):
        def readinto(self, buffer):
            return super().readinto(memoryview(buffer)[:5])

    class InPieces(Host):
        def open(self, path, mode="rb", buffering=-1):
            return Short(path) if buffering == 0 else io.BufferedReader(Short(path))

    (tmp_path / "x").write_bytes(bytes(range(20)))
    with use_host(InPieces()):
        assert read_range(tmp_path / "x", 2, 15) == bytes(range(2, 15))
        assert read_range(tmp_path / "x", 12, 99) == bytes(range(12, 20))


def test_text_that_is_not_utf8_is_read_as_pathlib_would(tmp_path):
    (tmp_path / "x").write_bytes(b"\xffa")
    assert (tmp_path / "x").read_text(errors="replace") == "\ufffda"
    assert (tmp_path / "x").read_text("latin-1") == "\xffa"
    with pytest.raises(UnicodeDecodeError):
        (tmp_path / "x").read_text()


def test_bytes_are_replaced_only_where_the_expected_ones_still_are(tmp_path):
    file = tmp_path / "directory" / "a"
    assert not file.compare_and_swap(b"old", b"new")
    file.write_atomic(b"other")
    assert not file.compare_and_swap(b"old", b"new")
    assert file.compare_and_swap(b"other", b"new")
    assert file.read_bytes() == b"new"
    file.unlink()
    assert not file.compare_and_swap(b"new", b"newer")
    assert [path.name for path in tmp_path.rglob("*")] == ["directory"]


def test_a_trial_of_writing_leaves_no_name_that_readers_see(tmp_path, monkeypatch):
    """Where files cannot be created without a name, a kill may leave the trial file behind."""
    monkeypatch.setattr(tempfile, "_O_TMPFILE_WORKS", False)
    monkeypatch.setattr(os, "unlink", lambda path: None)
    (tmp_path / "new").probe_writable()
    (left,) = (tmp_path / "new").iterdir()
    assert left.name.startswith(".")
    monkeypatch.undo()
    (tmp_path / "new").remove_temporaries()
    assert not any((tmp_path / "new").iterdir())


def test_a_directory_that_two_remove_is_gone(tmp_path):
    for round_ in range(5):
        place = tmp_path / str(round_)
        for number in range(40):
            write_json(place / str(number % 7) / f"{number}.json", {})
        at_once([place.remove_tree] * 4)
        assert not place.exists()


def test_a_new_file_whose_attempt_was_removed_as_a_leftover_is_written_again(tmp_path, monkeypatch):
    whole, waiting = os.link, ["sweep"]

    def link(source, target):
        if waiting:
            waiting.pop()
            Path(source).unlink()
        whole(source, target)

    monkeypatch.setattr(os, "link", link)
    assert (tmp_path / "file").write_new(b"first")
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"first"]
