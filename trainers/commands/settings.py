"""Parse `name=value` settings, which several commands take."""

from collections.abc import Mapping, Sequence

from gristmill.storage.parsing import parse_location


def split_settings(settings: Sequence[str], names: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Split settings into a mapping of those with one of `names`, and the others unchanged."""
    named = {key: value for key, _, value in (s.partition("=") for s in settings) if key in names}
    return named, [setting for setting in settings if setting.partition("=")[0] not in names]


def corpora_of(named: Mapping[str, str]) -> tuple[str, ...]:
    """The directories or URLs in `corpus=A,B`; raises ConfigError for one that can be neither."""
    corpora = tuple(filter(None, named.get("corpus", "").split(",")))
    for name in corpora:
        parse_location(name)
    return corpora
