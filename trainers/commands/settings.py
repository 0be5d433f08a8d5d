"""Settings of several commands, written `name=value`."""

from collections.abc import Mapping, Sequence

from gristmill.storage.parsing import parse_location


def split_settings(settings: Sequence[str], names: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Settings with one of `names` as a mapping, and the others as they are."""
    named = {key: value for key, _, value in (s.partition("=") for s in settings) if key in names}
    return named, [setting for setting in settings if setting.partition("=")[0] not in names]


def corpora_of(named: Mapping[str, str]) -> tuple[str, ...]:
    """The places of `corpus=A,B`; raises ConfigError for one that can be neither a directory nor a URL of a
    corpus.
    """
    corpora = tuple(filter(None, named.get("corpus", "").split(",")))
    for name in corpora:
        parse_location(name)
    return corpora
