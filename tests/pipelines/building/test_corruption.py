"""Damage at rest: after a flipped bit or a truncation in a file of a corpus or of an interrupted build, an
error names the file, or the result is unchanged.
"""

import os
import re
import shutil
from pathlib import Path

import pytest

from gristmill.errors import CorruptFileError
from gristmill.storage.disk import LocalPath
from pipelines.building.build import build
from pipelines.cluster.local import LocalCluster
from pipelines.contracts.columns import DROP
from pipelines.contracts.lineage import open_corpus
from pipelines.contracts.tombstone import read_tombstone
from pipelines.erasure.forget import forget
from tests.damage import cuts, damaged, files_of, flips, unnamed
from tests.damaged_corpus import everything, plan_of, write_corpus

# What no reader has to find: a page that no program reads, what says that the page is current, and what is made again.
PAGES = ("report.html", "report.json")
CACHES = ("run.json", ".checksums.json")  # rates of steps, from which estimates are made; checksums of the sources

pytestmark = pytest.mark.faults


@pytest.fixture(scope="module")
def config(tmp_path_factory) -> Path:
    return write_corpus(tmp_path_factory.mktemp("corruption"))


@pytest.fixture(scope="module")
def corpus(config) -> Path:
    plan = plan_of(config)
    build(plan, LocalCluster(), lambda line: None)
    return plan.config.place


def test_damage_to_any_file_of_a_corpus_is_found_by_its_readers(config, corpus):
    check_corpus(config, corpus, flipped=2, cut=1)


@pytest.mark.slow
def test_every_kilobyte_of_a_corpus_may_be_its_end(config, corpus):
    check_corpus(config, corpus, flipped=12, cut=None)


def check_corpus(config: Path, root: Path, flipped: int, cut: int | None) -> None:
    before = everything(config, root)
    wrong, found = [], 0
    for seed, path in enumerate(files_of(root)):
        size = path.stat().st_size
        damages = [*flips(size, seed, flipped), *cuts(size, seed, cut)]
        if path.name in PAGES:
            damages = damages[:1]
        for damage in damages:
            found += 1
            wrong.append(unnamed(root, path, damage, lambda: everything(config, root) == before))
    assert [line for line in wrong if line] == []
    assert found > 200
    assert everything(config, root) == before


def test_caches_and_reports_are_made_again(config, corpus):
    """A build succeeds with all caches and report pages damaged, and publishes the same corpus."""
    wanted = (corpus / "manifest.json").read_bytes()
    for path in files_of(corpus):
        if path.name in (*PAGES, *CACHES):
            content = bytearray(path.read_bytes())
            content[len(content) // 2] ^= 4
            path.write_bytes(content)
    build(plan_of(config), LocalCluster(), lambda line: None)
    assert (corpus / "manifest.json").read_bytes() == wanted


@pytest.mark.parametrize("kind", ["parts", "files", "quarantine", "filter.web", "shards"])
def test_nothing_is_forgotten_by_way_of_a_damaged_file(kind, corpus, tmp_path):
    """Forgetting rewrites files. If one of them is damaged, an error names it, so that the damage is not
    copied.
    """
    root = tmp_path / "out"
    shutil.copytree(corpus, root)
    table = next(open_corpus(root).parts("web")).table(("id", DROP))
    identifier = table["id"][table[DROP].to_pylist().index(None)].as_py().hex()
    place = kind if kind in ("filter.web", "shards") else f"read.web-*/{kind}"
    file = next(root.glob(f"{place}-*/**/*.arrow" if "*" not in place else f"{place}/*.arrow"))
    for damage in (*flips(file.stat().st_size, 1, 1), ("cut", file.stat().st_size // 2)):
        with damaged(file, *damage), pytest.raises(CorruptFileError, match=re.escape(str(file))):
            forget(root, [identifier] if not read_tombstone(root)["pending"] else [], [])


class Died(BaseException):
    """Raised in place of the death of the process."""


@pytest.mark.parametrize("step", ["dedup_minhash", "shards", "text_hash.web"])
def test_damage_to_files_of_an_interrupted_step_is_detected_or_changes_nothing(
    step, config, corpus, tmp_path, monkeypatch
):
    """With a damaged receipt or intermediate file, the step continues and publishes the same manifest, or an error names the
    file.
    """
    root, place = tmp_path / "out", next(corpus.glob(f"{step}-*"))
    wanted, directory = (place / "manifest.json").read_bytes(), root / place.name
    shutil.copytree(corpus, root, ignore=shutil.ignore_patterns(place.name, "report.*"))
    again = tmp_path / "small.yaml"
    again.write_text(config.read_text().replace(f"output: {corpus}", f"output: {root}"))
    plan = plan_of(again)
    real, writes, published = LocalPath.write_atomic, [0, 0], [b""]

    def dying(path, content, check=None):
        writes[0] += path.is_relative_to(directory)
        if path == directory / "manifest.json":
            published[0] = content
        if path == directory / "manifest.json" or writes[0] == writes[1]:
            raise Died
        real(path, content, check)

    def go_on(until: int = -1) -> bool:
        writes[:], published[0] = [0, until], b""
        with pytest.raises(Died):
            build(plan, LocalCluster(), lambda line: None)
        return published[0] == wanted

    monkeypatch.setattr(LocalPath, "write_atomic", dying)
    assert go_on()
    last = writes[0]
    wrong, damages = [], 0
    for until in sorted({last // 2, last}):
        shutil.rmtree(directory)
        go_on(until)
        saved = tmp_path / f"saved-{until}"
        directory.rename(saved)
        for seed, file in enumerate(files_of(saved)):
            size, damaged_file = file.stat().st_size, directory / file.relative_to(saved)
            for damage in (*flips(size, seed, 1), ("cut", size // 2)):
                shutil.copytree(saved, directory, copy_function=os.link)  # files are replaced, never written again
                damaged_file.unlink()
                shutil.copy2(file, damaged_file)
                wrong.append(unnamed(root, damaged_file, damage, go_on))
                shutil.rmtree(directory)
                damages += 1
        directory.mkdir()
    assert [line for line in wrong if line] == []
    assert damages > 3
