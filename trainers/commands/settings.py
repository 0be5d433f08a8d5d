"""Parse the `name=value` settings that several commands take."""

from collections.abc import Mapping, Sequence

from gristmill.storage.parsing import parse_location


def split_settings(settings: Sequence[str], names: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Split settings into a mapping of those whose name is in `names`, and the others unchanged."""
    named = {key: value for key, _, value in (s.partition("=") for s in settings) if key in names}
    return named, [setting for setting in settings if setting.partition("=")[0] not in names]


def corpora_of(named: Mapping[str, str]) -> tuple[str, ...]:
    """Return the directories or URLs in `corpus=A,B`. Raises ConfigError for one that can be neither."""
    corpora = tuple(filter(None, named.get("corpus", "").split(",")))
    for name in corpora:
        parse_location(name)
    return corpora
