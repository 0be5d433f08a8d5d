"""Disks that fill up: small file systems in memory."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def disk(path: Path, size: int) -> Iterator[Path]:
    """Mount a disk of `size` bytes at `path`, or skip the test if mounting is not allowed."""
    path.mkdir(exist_ok=True)
    options = ["-t", "tmpfs", "-o", f"size={size}"]
    if os.geteuid() or subprocess.run(["mount", *options, "disk", path], capture_output=True, check=False).returncode:
        pytest.skip("a disk that gets full is a tmpfs of its own, and none may be mounted here")
    try:
        yield path
    finally:
        subprocess.run(["umount", "--lazy", path], check=True)


def enlarge(path: Path, size: int) -> None:
    subprocess.run(["mount", "-o", f"remount,size={size}", path], check=True)


def used(path: Path) -> int:
    facts = os.statvfs(path)
    return (facts.f_blocks - facts.f_bfree) * facts.f_frsize
