"""Parse the locations that users write on command lines and in configurations."""

import argparse
import os

from gristmill.errors import ConfigError
from gristmill.storage.disk import LocalPath
from gristmill.storage.location import Location
from gristmill.storage.object_store import RemotePath
from gristmill.storage.paths import PathError, expand_home, is_url, local_path
from gristmill.storage.remote import Remote, check_url, has_query, shown


def parse_location(name: str, remote: Remote | None = None, field: str = "corpus") -> Location:
    """Parse a path or a URL. A leading `~` or `$HOME` of a path is expanded.

    `remote` says which URLs may be opened. Without it, the defaults apply, and GRISTMILL_ALLOW_PRIVATE=1 in
    the environment allows addresses that are not public.

    Raises ConfigError, which names `field`, for a path that cannot be expanded, and for a URL that is
    malformed, has a scheme that may not be opened, or contains a user name, a password or, over HTTP, a query
    or fragment.
    """
    if not is_url(name):
        return LocalPath(expand_location(name, field))
    remote = remote or Remote(allow_private=os.environ.get("GRISTMILL_ALLOW_PRIVATE") == "1")
    scheme = name.partition(":")[0].lower()
    try:
        check_url(field, name)
    except ValueError as error:
        raise ConfigError(str(error)) from None
    if scheme not in remote.schemes:
        raise ConfigError(
            f"{field}: got a URL of the scheme {scheme!r}, expected a local directory or one of {', '.join(remote.schemes)}"
        )
    if has_query(name):
        raise ConfigError(f"{field}: got {shown(name)!r}, expected a location without a query")
    return RemotePath(f"{scheme}{name[len(scheme) :].rstrip('/')}", remote)


def location_argument(name: str) -> Location:
    """Parse a command-line argument with `parse_location`. Raises argparse.ArgumentTypeError instead of
    ConfigError.
    """
    try:
        return parse_location(name)
    except ConfigError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def expand_location(name: str, field: str) -> str:
    """Expand a location from the configuration field `field`, as `expand_home` does. Raises ConfigError
    instead of PathError.
    """
    try:
        return expand_home(name)
    except PathError as error:
        raise ConfigError(f"{field}: {error}") from None


def parse_local(name: str, field: str) -> LocalPath:
    """Parse a local path from the configuration field `field`. Raises ConfigError for a URL or a path that
    cannot be expanded.
    """
    try:
        return local_path(name)
    except PathError as error:
        raise ConfigError(f"{field}: {error}") from None
