"""The image's lock file lists every package that the image needs, with hashes, in the version that
constraints.txt pins, if any. It names no package index.
"""

import re
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
LOCK = ROOT / "deploy" / "requirements.lock"
ENTRY = re.compile(
    r"(?P<name>[a-z0-9][a-z0-9-]*)==(?P<version>[0-9][a-z0-9.]*)(?P<hashes>( \\\n    --hash=sha256:[0-9a-f]{64})+)\n"
)
IMAGE = {
    "extra": "", "platform_system": "Linux", "sys_platform": "linux", "platform_machine": "x86_64", "os_name": "posix",
    "python_version": "3.11", "python_full_version": "3.11.5", "implementation_name": "cpython",
    "platform_python_implementation": "CPython",
}  # fmt: skip
OF_CUDA = re.compile(r"nvidia-.*|cuda-.*|triton")  # of torch's build for GPUs, which is not the one of constraints.txt


@pytest.fixture(scope="module")
def locked():
    return {entry["name"]: entry["version"] for entry in ENTRY.finditer(LOCK.read_text())}


def wanted():
    """Return the requirements that the image installs: the project's dependencies, and those of the extras named in the
    Makefile.
    """
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = re.findall(r"--extra (\S+)", (ROOT / "Makefile").read_text())
    assert extras
    lines = [*project["dependencies"], *(line for extra in extras for line in project["optional-dependencies"][extra])]
    return [Requirement(line) for line in lines]


def test_every_line_is_a_version_with_hashes_and_nothing_else(locked):
    text = "".join(line for line in LOCK.read_text().splitlines(keepends=True) if not line.startswith("#"))
    assert "".join(entry[0] for entry in ENTRY.finditer(text)) == text
    assert len(locked) == len(ENTRY.findall(text)) > 100


def test_it_holds_what_the_project_needs_in_the_versions_of_the_constraints(locked):
    for requirement in wanted():
        assert requirement.specifier.contains(locked[canonicalize_name(requirement.name)]), requirement
    pins = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines())
    assert {name: (version, pins[name]) for name, version in locked.items() if pins.get(name, version) != version} == {}
    others = {name for name in locked if name not in pins and not OF_CUDA.fullmatch(name)}
    assert others == {"setuptools"}


def test_what_its_packages_need_is_in_it(locked):
    """The image is installed without resolving dependencies, so the lock must list all of them. The test
    covers packages that are installed here in the locked version.
    """
    checked = 0
    for name, version in locked.items():
        try:
            distribution = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue
        if distribution.version.partition("+")[0] != version:
            continue
        checked += 1
        for line in distribution.requires or ():
            requirement = Requirement(line)
            if requirement.marker is None or requirement.marker.evaluate(IMAGE):
                found = locked.get(canonicalize_name(requirement.name))
                assert found, f"{name} needs {requirement}"
                assert requirement.specifier.contains(found, prereleases=True), (
                    f"{name} needs {requirement}, not {found}"
                )
    assert checked > 100


def test_the_image_installs_the_lock_and_nothing_that_has_no_hash():
    text = (ROOT / "deploy" / "Dockerfile").read_text().replace("\\\n", " ")
    installs = re.findall(r"pip install ([^&\n]*)", text)
    assert len(installs) == 2
    assert all({"--no-deps", "--no-build-isolation"} <= set(words.split()) for words in installs)
    assert "--require-hashes" in installs[0]
    assert "--requirement requirements.lock" in installs[0]
    assert installs[1].split()[-2:] == ["--editable", "."]
