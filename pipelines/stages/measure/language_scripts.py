"""Scripts and languages: reject labels whose script the text does not use, and identify languages that have a
script of their own.

resiliparse compares n-grams by their hashes, so base64 and Ethiopic come near the profile of Chinese, with
scores in the range of Chinese pages. The blocks are those of the Unicode Standard; languages with several
scripts in use list all of them.
"""

from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np

MIN_SCRIPT_SHARE = 0.1  # share of letters in a script of the language below which a label is rejected
_BLOCKS = {
    "Latin": (
        (0x0041, 0x005A),
        (0x0061, 0x007A),
        (0x00AA, 0x024F),
        (0x1E00, 0x1EFF),
    ),
    "Greek": (
        (0x0370, 0x03FF),
        (0x1F00, 0x1FFF),
    ),
    "Cyrillic": (
        (0x0400, 0x052F),
        (0x1C80, 0x1C8F),
        (0x2DE0, 0x2DFF),
        (0xA640, 0xA69F),
    ),
    "Armenian": ((0x0530, 0x058F),),
    "Hebrew": ((0x0590, 0x05FF),),
    "Arabic": (
        (0x0600, 0x06FF),
        (0x0750, 0x077F),
        (0x0870, 0x08FF),
        (0xFB50, 0xFDFF),
        (0xFE70, 0xFEFF),
    ),
    "Thaana": ((0x0780, 0x07BF),),
    "Devanagari": (
        (0x0900, 0x097F),
        (0xA8E0, 0xA8FF),
    ),
    "Bengali": ((0x0980, 0x09FF),),
    "Gurmukhi": ((0x0A00, 0x0A7F),),
    "Gujarati": ((0x0A80, 0x0AFF),),
    "Oriya": ((0x0B00, 0x0B7F),),
    "Tamil": ((0x0B80, 0x0BFF),),
    "Telugu": ((0x0C00, 0x0C7F),),
    "Kannada": ((0x0C80, 0x0CFF),),
    "Malayalam": ((0x0D00, 0x0D7F),),
    "Sinhala": ((0x0D80, 0x0DFF),),
    "Thai": ((0x0E00, 0x0E7F),),
    "Lao": ((0x0E80, 0x0EFF),),
    "Tibetan": ((0x0F00, 0x0FFF),),
    "Burmese": (
        (0x1000, 0x109F),
        (0xAA60, 0xAA7F),
    ),
    "Georgian": (
        (0x10A0, 0x10FF),
        (0x1C90, 0x1CBF),
    ),
    "Hangul": (
        (0x1100, 0x11FF),
        (0x3130, 0x318F),
        (0xAC00, 0xD7AF),
    ),
    "Khmer": ((0x1780, 0x17FF),),
    "Kana": (
        (0x3040, 0x30FF),
        (0xFF66, 0xFF9F),
    ),
    "Han": (
        (0x2E80, 0x2FDF),
        (0x3005, 0x3007),
        (0x3400, 0x4DBF),
        (0x4E00, 0x9FFF),
        (0xF900, 0xFAFF),
        (0x20000, 0x3FFFF),
    ),
}
_LANGUAGES = {
    "ar fa ps ug ur": "Arabic",
    "as bn": "Bengali",
    "az ku tk uz": "Latin Cyrillic Arabic",
    "ba be bg ce cv ky mk mn ru tg tt uk": "Cyrillic",
    "bo": "Tibetan",
    "dv": "Thaana",
    "el": "Greek",
    "gu": "Gujarati",
    "he yi": "Hebrew",
    "hi mr ne sa": "Devanagari",
    "hy": "Armenian",
    "ja": "Kana Han",
    "ka": "Georgian",
    "kk": "Cyrillic Latin Arabic",
    "km": "Khmer",
    "kn": "Kannada",
    "ko": "Hangul",
    "ml": "Malayalam",
    "my": "Burmese",
    "or": "Oriya",
    "pa": "Gurmukhi Arabic",
    "sd": "Arabic Devanagari",
    "si": "Sinhala",
    "sr": "Cyrillic Latin",
    "ta": "Tamil",
    "te": "Telugu",
    "th": "Thai",
    "zh": "Han",
}
_SCRIPTS = {
    language: tuple(scripts.split()) for languages, scripts in _LANGUAGES.items() for language in languages.split()
}
_ONE_LANGUAGE = {
    "Armenian": "hy", "Georgian": "ka", "Greek": "el", "Gujarati": "gu", "Hangul": "ko", "Kannada": "kn", "Khmer": "km",
    "Lao": "lo", "Malayalam": "ml", "Oriya": "or", "Sinhala": "si", "Tamil": "ta", "Telugu": "te", "Thaana": "dv", "Thai": "th",
}  # fmt: skip
"""Scripts of a single language, apart from minorities of a few per cent at most."""
MOST = 0.9  # share of letters in a script from which it identifies the language
_JAPANESE = 0.1  # share of letters in kana from which it is Japanese: Chinese has none, Japanese about half
_INDEX = {name: index for index, name in enumerate(_BLOCKS, 2)}


def written_in(text: str, language: str) -> bool:
    """Whether at least a tenth of a text's letters are in a script of the language. A language that is not
    listed is expected in Latin script.
    """
    scripts = _SCRIPTS.get(language, ("Latin",))
    if text.isascii():
        return "Latin" in scripts
    counts = _count(text)
    return bool(sum(counts[_INDEX[script]] for script in scripts) >= max(1, MIN_SCRIPT_SHARE * counts[1:].sum()))


def language_of_script(text: str) -> tuple[str, float] | None:
    """Return the language identified by a text's script, and the share of its letters in that script; None if
    no script identifies one.

    Nine tenths of the letters must be in a script of a single language, or in Han and kana: Japanese if a
    tenth or more is kana, else Chinese. Scripts of several languages (Latin, Cyrillic, Arabic, Devanagari,
    ...) identify none.
    """
    if text.isascii():
        return None
    counts = _count(text)
    letters = max(1, int(counts[1:].sum()))
    kana = counts[_INDEX["Kana"]] / letters
    shares = {language: counts[_INDEX[script]] / letters for script, language in _ONE_LANGUAGE.items()}
    shares["ja" if kana >= _JAPANESE else "zh"] = kana + counts[_INDEX["Han"]] / letters
    language = max(shares, key=lambda language: shares[language])
    return (language, float(shares[language])) if shares[language] >= MOST else None


def _count(text: str) -> "np.ndarray":
    """Count the letters of each script by its index, int64 [scripts + 2]. Index 1 counts other letters, index
    0 non-letters.
    """
    import numpy as np

    codes = np.frombuffer(text.encode("utf-32-le"), np.uint32)
    return np.bincount(_table()[codes], minlength=len(_BLOCKS) + 2)


@cache
def _table() -> "np.ndarray":
    """Return the script index of each code point, uint8 [0x110000]. 0 is not a letter; 1 is a letter of a
    script that is not listed in `_BLOCKS`.
    """
    import numpy as np

    table = np.fromiter((chr(code).isalpha() for code in range(0x110000)), np.uint8, 0x110000)
    for name, ranges in _BLOCKS.items():
        for first, last in ranges:
            table[first : last + 1] = _INDEX[name]
    return table
