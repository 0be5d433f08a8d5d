"""URL normalisation: URLs with the same normal form are taken to name the same page.

The equivalences of RFC 3986, sections 6.2.2 and 6.2.3, are applied. Beyond the RFC, the fragment, user
information and a trailing dot of the host are removed, and non-ASCII hosts become ASCII (IDNA 2003). Query
parameters are sorted by name; empty ones (as in `a=1&&b=2`) and known identifiers of campaigns, clicks,
visitors and sessions are removed.
"""

import re
from contextlib import suppress
from typing import NamedTuple
from urllib.parse import quote, unquote

_HIERARCHICAL = re.compile(r"(?:([a-z][a-z0-9+.-]*):)?//", re.ASCII | re.IGNORECASE)
_OPAQUE = re.compile(r"([a-z][a-z0-9+.-]*):(?![0-9])", re.ASCII | re.IGNORECASE)  # `localhost:8080` has no scheme
_REST = re.compile(r"([^/?#]*)([^?#]*)(?:\?([^#]*))?", re.DOTALL)
_AUTHORITY = re.compile(r"(\[[^\]]*\]|[^:\[\]]*)(?::([0-9]*))?", re.ASCII)
_PLAIN_HOST = re.compile(r"[a-z0-9_.-]+|\[[0-9a-f:.]+\]", re.ASCII)
# RFC 3986: characters that path and query hold unescaped
_PLAIN = re.compile(r"[A-Za-z0-9._~!$&'()*+,;=:@/?-]*", re.ASCII)
_ESCAPE = re.compile(r"%([0-9A-Fa-f]{2})?", re.ASCII)
_ALLOWED = "!$&'()*+,;=:@/?%"
_UNRESERVED = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~")
_PORTS = {"http": "80", "https": "443", "ftp": "21"}
_MAX_HOST = 253  # characters of a name, RFC 1035, section 2.3.4

# Parameters that their makers document as campaign, click, visitor or session identifiers: Google Analytics
# and Ads, Meta, Microsoft, Yandex, X, TikTok, LinkedIn, Mailchimp, HubSpot, Marketo; sessions of PHP and Java
# servlets.
_TRACKING = frozenset((
    "_ga", "_gl", "gclid", "gclsrc", "dclid", "gbraid", "wbraid", "fbclid", "igshid", "msclkid", "yclid", "twclid", "ttclid",
    "li_fat_id", "mc_cid", "mc_eid", "_hsenc", "_hsmi", "mkt_tok", "phpsessid", "jsessionid",
))  # fmt: skip
_TRACKING_PREFIX = "utm_"


class Url(NamedTuple):
    """A URL in normal form. If the URL has no host, `path` is everything after the scheme except the
    fragment.
    """

    scheme: str
    host: str | None
    port: str
    path: str
    query: str

    def __str__(self) -> str:
        if self.host is None:
            return f"{self.scheme}:{self.path}" if self.scheme else self.path
        port = f":{self.port}" if self.port else ""
        return f"{self.scheme}://{self.host}{port}{self.path}{f'?{self.query}' if self.query else ''}"


def normalise_url(url: str) -> Url:
    """Return the normal form of a URL. Any text is accepted: text without a scheme is read as http, but empty
    text, and text that begins with `?`, `#` or a single `/`, is read as a path.

    The host is None for a path, for a scheme that is not followed by `//` (such as `mailto:`), and for a
    malformed host or port.
    """
    url = url.strip().replace("\t", "").replace("\n", "").replace("\r", "")
    match = _HIERARCHICAL.match(url)
    if match is None:
        opaque = _OPAQUE.match(url)
        if opaque is not None or url[:1] in ("/", "?", "#", ""):
            scheme = opaque[1].lower() if opaque is not None else ""
            path = url[opaque.end() :] if opaque is not None else url
            return Url(scheme, None, "", _normalise_escapes(path.partition("#")[0]), "")
    scheme = (match[1] or "http").lower() if match is not None else "http"
    rest = _REST.match(url, match.end() if match is not None else 0)
    assert rest is not None
    without_user = rest[1].rpartition("@")[2]
    authority = _AUTHORITY.fullmatch(without_user)
    host = _host(authority[1]) if authority is not None else None
    if authority is None or host is None:
        whole = _normalise_escapes(without_user + rest[0][len(rest[1]) :])
        return Url(scheme, None, "", "//" + whole.replace("%5B", "[").replace("%5D", "]"), "")
    port = (authority[2] or "").lstrip("0")
    path = _remove_dot_segments(_normalise_escapes(rest[2]))
    return Url(scheme, host, "" if port == _PORTS.get(scheme) else port, path, _query(rest[3] or ""))


def _host(host: str) -> str | None:
    host = host.lower().rstrip(".")
    if len(host) <= _MAX_HOST and _PLAIN_HOST.fullmatch(host):
        return host
    if host.startswith("["):
        return None
    host = unquote(host).lower().rstrip(".")
    if not host or len(host) > _MAX_HOST:
        return None
    if not host.isascii():
        with suppress(UnicodeError):
            host = host.encode("idna").decode("ascii").lower()
    return quote(host, safe="!$&'()*+,;=~")


def _normalise_escapes(text: str) -> str:
    """Percent-encode the characters that a path or query may not contain, and normalise the escapes that it
    already has (RFC 3986, section 6.2.2).
    """
    if _PLAIN.fullmatch(text):
        return text
    return quote(_ESCAPE.sub(_escape, text), safe=_ALLOWED)


def _escape(match: re.Match[str]) -> str:
    if match[1] is None:
        return "%25"
    character = chr(int(match[1], 16))
    return character if character in _UNRESERVED else match[0].upper()


def _remove_dot_segments(path: str) -> str:
    """Remove dot segments (RFC 3986, section 5.2.4) from a path that is empty or absolute. An empty path
    becomes `/`.
    """
    if "/." not in path:
        return path or "/"
    segments = path.split("/")[1:]
    kept: list[str] = []
    for segment in segments:
        if segment == "..":
            del kept[-1:]
        elif segment != ".":
            kept.append(segment)
    if segments[-1] in (".", ".."):
        kept.append("")
    return "/" + "/".join(kept)


def _query(query: str) -> str:
    """Return the normal form of a query: its parameters sorted by name, without empty and tracking
    parameters. Parameters of the same name keep their order, which may be significant.
    """
    parameters = [parameter for parameter in _normalise_escapes(query).split("&") if parameter]
    named = [(parameter.partition("=")[0], parameter) for parameter in parameters]
    kept = [entry for entry in named if not _tracks(entry[0].lower())]
    return "&".join(parameter for _, parameter in sorted(kept, key=lambda entry: entry[0]))


def _tracks(name: str) -> bool:
    return name in _TRACKING or name.startswith(_TRACKING_PREFIX)
