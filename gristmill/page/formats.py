"""Format numbers, sizes, times and names for pages. A missing value is shown as `–`."""

from datetime import UTC, datetime
from math import isnan

from gristmill.terminal import human_bytes, printable

NONE = "–"


def count(value: float | None) -> str:
    """Format a count in full: `1,234,567`."""
    return NONE if value is None else f"{value:,}"


def decimals(value: float | None, places: int) -> str:
    """Format a number to `places` decimal places: `1,234.50`. NaN counts as missing."""
    return NONE if value is None or isnan(value) else f"{value:,.{places}f}"


def signed(value: float | None, places: int) -> str:
    """Format a difference like `decimals`, with its sign: `+1,234.50`."""
    return NONE if value is None or isnan(value) else f"{value:+,.{places}f}"


def compact(value: float) -> str:
    """Format a number with at most four significant digits: `9,876`, `1.235M`."""
    for limit, divisor, unit in ((1e12, 1e12, "T"), (1e9, 1e9, "G"), (1e6, 1e6, "M"), (1e4, 1e3, "k")):
        if abs(value) >= limit:
            return f"{value / divisor:.4g}{unit}"
    return f"{value:,.0f}" if float(value).is_integer() or abs(value) >= 9999.5 else f"{value:.4g}"


def in_words(value: float | None) -> str:
    """Format a count for prose: below a million in full (`999,999`), otherwise to three significant digits
    (`7.12 million`).
    """
    if value is None:
        return NONE
    for limit, unit in ((1e12, "trillion"), (1e9, "billion"), (1e6, "million")):
        if value >= max(0.9995 * limit, 1e6):
            return f"{value / limit:.3g} {unit}"
    return f"{value:,}"


def size(value: float | None) -> str:
    """Format a number of bytes with a decimal unit: `12.3 MB`."""
    return NONE if value is None else human_bytes(value)


def short_size(value: float) -> str:
    """Format a number of bytes for a label: `50 MB`, not `50.0 MB`."""
    return human_bytes(value).replace(".0 ", " ")


def percent(part: float | None, whole: float | None = None, places: int | None = None) -> str:
    """Format a share as a percentage: `12.3 %`. The share is `part / whole`, or `part` itself if `whole` is
    None. Returns NONE if `part` is None or `whole` is 0. By default, the number of decimal places depends on
    the share.
    """
    if part is None or whole == 0:
        return NONE
    share = part if whole is None else part / whole
    if places is None:
        places = 0 if share in (0, 1) else 1 if 0.001 <= share <= 0.999 else 3
    return f"{100 * share:.{places}f} %"


def duration(seconds: float) -> str:
    """Format a measured time in its two largest units: `3 h 25 min`, `4 min 07 s`. Under a minute: `12.3 s`."""
    minutes, whole = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours:,} h {minutes:02} min"
    return f"{minutes} min {whole:02} s" if minutes else f"{seconds:.1f} s"


def time(seconds: float) -> str:
    """Format a Unix time as a date and time in UTC."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S")


def shortened(name: str, limit: int) -> str:
    """Shorten a name to at most `limit` characters and make it safe to show."""
    name = printable(name)
    return name if len(name) <= limit else f"{name[: limit - 1]}…"
