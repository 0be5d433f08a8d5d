"""Extras: the message for a library that cannot be imported, and complete installation by an old pip."""

import tomllib
from dataclasses import replace
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from gristmill.errors import UserError
from gristmill.libraries.extras import EXTRAS, import_failures, install_extra
from pipelines.planning.corpus import load_corpus_config
from pipelines.planning.required_libraries import needs_of, refuse_missing
from pipelines.stages.score.perplexity import Perplexity

ROOT = Path(__file__).parents[3]


def test_modules_that_fail_are_named_with_their_first_line(tmp_path, monkeypatch):
    (tmp_path / "half_installed.py").write_text("raise ImportError('part of it is missing\\nand more')")
    (tmp_path / "crashing.py").write_text("import os; os._exit(7)")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert import_failures(["json", "half_installed", "crashing"]) == {
        "half_installed": "ImportError: part of it is missing",
        "crashing": "importing it ended the process with status 7",
    }
    assert import_failures(["json"]) == {}


def test_every_extra_is_one_of_the_project():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert set(EXTRAS) == set(extras) - {"dev"}
    assert install_extra("s3").endswith("'.[s3]'")


def distributions(names):
    """Return the installed distributions with these names, and those of their dependencies, by name."""
    seen = {}
    while names:
        name = canonicalize_name(names.pop())
        if name in seen:
            continue
        try:
            seen[name] = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue
        lines = [Requirement(line) for line in seen[name].requires or ()]
        names += [line.name for line in lines if line.marker is None or line.marker.evaluate({"extra": ""})]
    return seen


@pytest.mark.long
def test_no_extra_has_another_name_where_it_is_asked_for():
    """pip before 24.1 treats `html_clean` and `html-clean` as different extras and installs nothing, so our
    requirements must name the packages that such an extra stands for.
    """
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    ours = [*project["dependencies"], *(line for extra in project["optional-dependencies"].values() for line in extra)]
    named = {canonicalize_name(Requirement(line).name) for line in ours}
    missed = {}
    for name, distribution in distributions([Requirement(line).name for line in ours]).items():
        for line in map(Requirement, distribution.requires or ()):
            if line.marker is not None and not line.marker.evaluate({"extra": ""}):
                continue
            for extra in line.extras:
                missed |= _missed(canonicalize_name(line.name), extra, f"{name}: {line}")
    assert {where: needs for where, needs in missed.items() if not needs <= named} == {}
    assert missed  # justext's, as long as it is so


def _missed(name, extra, where):
    try:
        asked = metadata.distribution(name)
    except metadata.PackageNotFoundError:
        return {}
    if extra in (asked.metadata.get_all("Provides-Extra") or ()):
        return {}
    lines = [Requirement(line) for line in asked.requires or ()]
    by_extra = [line for line in lines if line.marker is not None and "extra" in str(line.marker)]
    return {where: {canonicalize_name(line.name) for line in by_extra if line.marker.evaluate({"extra": extra})}}


def corpus_file(tmp_path, source="", step="text_hash: {}"):
    path = tmp_path / "corpus.yaml"
    path.write_text(f"""
name: corpus
output: {tmp_path}/out
sources: [{{name: web, root: {tmp_path}, format: html{source}}}]
steps: [{{{step}}}]
""")
    return load_corpus_config(path)


def test_what_a_corpus_needs_is_found_in_its_sources_and_steps(tmp_path, monkeypatch):
    assert list(needs_of(corpus_file(tmp_path))) == []
    [need] = needs_of(corpus_file(tmp_path, ", extract: trafilatura"))
    assert need.module == "trafilatura"
    monkeypatch.setattr(Perplexity, "check", lambda stage: None)
    model = "perplexity: {model: x.bin}"
    assert [need.module for need in needs_of(corpus_file(tmp_path, step=model))] == ["kenlm"]
    config = corpus_file(tmp_path)
    remote = replace(config, sources=(replace(config.sources[0], root="s3://bucket/x"),), output="hf://datasets/x")
    assert [need.module for need in needs_of(remote)] == ["huggingface_hub", "s3fs"]
    listed = replace(config, sources=(replace(config.sources[0], files="s3://bucket/names"),))
    assert [(need.where, need.module) for need in needs_of(listed)] == [("source 'web': files", "s3fs")]


def test_a_missing_library_is_said_before_anything_is_read(tmp_path, monkeypatch):
    (tmp_path / "trafilatura.py").write_text("raise ImportError('of the cleaner')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(UserError) as error:
        refuse_missing(corpus_file(tmp_path, ", extract: trafilatura"))
    assert str(error.value) == (
        "source 'web': extract: needs the module trafilatura, which cannot be imported (ImportError: of the cleaner); run: "
        "pip install --constraint constraints.txt --editable '.[trafilatura]'"
    )
