"""Numbers as pages show them."""

import pytest

from gristmill.page import formats
from gristmill.terminal import human_bytes, human_count


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: formats.count(1234567), "1,234,567"),
        (lambda: formats.count(None), "–"),
        (lambda: formats.decimals(2.5, 4), "2.5000"),
        (lambda: formats.decimals(None, 4), "–"),
        (lambda: formats.decimals(float("nan"), 4), "–"),
        (lambda: formats.compact(9876), "9,876"),
        (lambda: formats.compact(12345), "12.35k"),
        (lambda: formats.compact(-1234567), "-1.235M"),
        (lambda: formats.compact(2e12), "2T"),
        (lambda: formats.compact(9999.6), "10,000"),
        (lambda: formats.compact(0.123456), "0.1235"),
        (lambda: formats.in_words(7_123_456), "7.12 million"),
        (lambda: formats.in_words(127_296), "127,296"),
        (lambda: formats.in_words(999_999), "999,999"),
        (lambda: formats.in_words(999_499_999), "999 million"),
        (lambda: formats.in_words(999_500_000), "1 billion"),
        (lambda: human_count(999_499), "999k"),
        (lambda: human_count(999_999), "1M"),
        (lambda: human_count(2.5e16), "25,000T"),
        (lambda: human_bytes(999_960), "1.0 MB"),
        (lambda: formats.in_words(None), "–"),
        (lambda: formats.size(1500), "1.5 kB"),
        (lambda: formats.short_size(50e6), "50 MB"),
        (lambda: formats.percent(1, 8), "12.5 %"),
        (lambda: formats.percent(0, 8), "0 %"),
        (lambda: formats.percent(1), "100 %"),
        (lambda: formats.percent(1, 80_000), "0.001 %"),
        (lambda: formats.percent(1, 0), "–"),
        (lambda: formats.percent(0.41, places=1), "41.0 %"),
        (lambda: formats.percent(None), "–"),
        (lambda: formats.duration(4.25), "4.2 s"),
        (lambda: formats.duration(247), "4 min 07 s"),
        (lambda: formats.duration(12_300), "3 h 25 min"),
        (lambda: formats.time(86_400), "1970-01-02 00:00:00"),
        (lambda: formats.shortened("a\u202eb" * 9, 10), "a\\u202eba…"),
    ],
)
def test_formats(call, text):
    assert call() == text
