"""Handle paths that users write: expand `~` and `$HOME`, and tell URLs from paths."""

import argparse
import re
from pathlib import Path

from gristmill.storage.disk import LocalPath

# Two or more letters, a colon and one slash: `s3:/bucket`, as pathlib shortens a URL, is included.
_URL = re.compile(r"([a-z][a-z0-9+.-]+):/", re.IGNORECASE)
LOGIN = r"://(?:[^/@\s:]+:(?!\d+/)\S*|[^/\s]+)@"
"""A regular expression for the user, and the password if there is one, of a URL. Passwords may contain `/` and `@`;
digits after a colon, up to a slash, are a port.
"""
_HOME = re.compile(r"\$(?:HOME|\{HOME\})(?=/|$)")
_VARIABLE = re.compile(r"\$(?:[A-Za-z_][A-Za-z0-9_]*|\{[A-Za-z_][A-Za-z0-9_]*\})(?=/|$)")


class PathError(ValueError, argparse.ArgumentTypeError):
    """A path cannot be used. argparse prints the message after the name of the argument."""


class NotLocalError(PathError):
    """A URL was given where a local path is expected."""


def expand_home(name: str) -> str:
    """Expand a leading `~`, `~USER` or `$HOME` of a path. Other paths and URLs are returned unchanged.

    Raises PathError for an unknown user, and for a path whose first component is any other variable.
    """
    name = _HOME.sub("~", name, count=1) if _HOME.match(name) else name
    if name.startswith("~"):
        try:
            return str(Path(name).expanduser())
        except RuntimeError:
            raise PathError(
                f"got {name!r}, but there is no such home directory (for a file of that name write ./{name})"
            ) from None
    variable = _VARIABLE.match(name)
    if variable is not None:
        raise PathError(
            f"got a path that begins with the variable {variable[0]}; only ~ and $HOME are expanded: write the path out (for a "
            f"directory of that name write ./{variable[0]})"
        )
    return name


def is_url(place: str) -> bool:
    """Return whether a location is a URL rather than a path. A misspelt URL such as `s3:/bucket` counts as a
    URL.
    """
    return bool(_URL.match(place))


def local_path(name: str) -> LocalPath:
    """Return a local path, expanded by `expand_home`. Raises NotLocalError for a URL, and PathError for a
    path that cannot be expanded.
    """
    found = _URL.match(name)
    if found is None:
        return LocalPath(expand_home(name))
    scheme = found[1].lower()
    if scheme == "file":
        raise NotLocalError("got a file: URL, expected a path; write the path without file://")
    raise NotLocalError(
        f"got a URL ({scheme}:), expected a local path: this can only be read and written on a local disk; copy to or from the "
        f"store with its own tools (for a local path of that name write ./{scheme}:...)"
    )
