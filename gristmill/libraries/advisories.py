"""Security advisories for ray, torch and pyarrow, and a check that refuses installed versions that they
affect.

CVE-2023-48022 is not listed, because no version fixes it: anyone who can reach a Ray cluster without token
authentication can run code on it. See docs/security.md.
"""

import re
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

from gristmill.errors import UserError


@dataclass(frozen=True)
class Advisory:
    """One security advisory. `since` is the first affected version of the package `distribution`, and `fixed`
    is the first version with the fix.
    """

    id: str
    distribution: str
    since: str
    fixed: str
    summary: str

    @property
    def source(self) -> str:
        """The URL of the advisory."""
        return f"https://nvd.nist.gov/vuln/detail/{self.id}"

    def affects(self, found: str) -> bool:
        """Return whether a version is in the affected range. Suffixes (`+cpu`, `rc1`) are ignored."""
        return _numbers(self.since) <= _numbers(found) < _numbers(self.fixed)


ADVISORIES = (
    Advisory("CVE-2023-6019", "ray", "0", "2.8.1", "commands run through the dashboard's cpu_profile"),
    Advisory("CVE-2023-6020", "ray", "0", "2.8.1", "files read through the dashboard's /static"),
    Advisory("CVE-2023-6021", "ray", "0", "2.8.1", "files read through the log API"),
    Advisory("CVE-2023-48023", "ray", "0", "2.8.1", "requests forged through the dashboard's log_proxy"),
    Advisory("CVE-2025-1979", "ray", "0", "2.43.0", "the password of Redis is written to a log"),
    Advisory("CVE-2025-62593", "ray", "0", "2.52.0", "a web page runs jobs through the browser of a developer"),
    Advisory("CVE-2026-27482", "ray", "0", "2.54.0", "a web page deletes jobs through the browser of a developer"),
    Advisory("CVE-2026-41486", "ray", "2.49.0", "2.55.0", "a Parquet file with Ray's extension types runs code"),
    Advisory("CVE-2026-57516", "ray", "0", "2.56.0", "a tar file runs code in read_webdataset"),
    Advisory("CVE-2025-32434", "torch", "0", "2.6.0", "torch.load runs code in spite of weights_only"),
    Advisory("CVE-2026-24747", "torch", "0", "2.10.0", "torch.load corrupts memory in spite of weights_only"),
    Advisory("CVE-2025-3000", "torch", "0", "2.13.0", "torch.jit.script corrupts memory"),
    Advisory("CVE-2023-47248", "pyarrow", "0.14.0", "14.0.1", "an Arrow or Parquet file runs code"),
    Advisory("CVE-2026-25087", "pyarrow", "15.0.0", "23.0.1", "use after free in the reader of Arrow files"),
)


def known(distribution: str, found: str) -> list[Advisory]:
    """Return the advisories that affect a version of a distribution, in the order of ADVISORIES."""
    return [entry for entry in ADVISORIES if entry.distribution == distribution and entry.affects(found)]


def refuse_known(*distributions: str) -> None:
    """Raise UserError if the installed version of one of the distributions has a known advisory."""
    for name in distributions:
        try:
            installed = version(name)
        except PackageNotFoundError:
            continue
        if affected := known(name, installed):
            raise UserError(describe(name, installed, affected))


def describe(distribution: str, found: str, affected: list[Advisory]) -> str:
    """Return a one-line error message that tells the user which version to install, and names the advisory
    that requires this version.
    """
    newest = max(affected, key=lambda entry: _numbers(entry.fixed))
    others = f" and {len(affected) - 1} more" if len(affected) > 1 else ""
    return (
        f"{distribution} {found} has a known advisory, {newest.id} ({newest.summary}){others}: {newest.source}; install "
        f"{newest.fixed} or newer, as constraints.txt does"
    )


def _numbers(text: str) -> tuple[int, ...]:
    match = re.match(r"\d+(?:\.\d+)*", text)
    assert match, text
    numbers = [int(number) for number in match[0].split(".")]
    return tuple(numbers + [0] * (4 - len(numbers)))
