"""Tables for the kernels: the class, the lower case and the kind of unit of every code point.

The tables come from `unicodedata`, `re` and `str.lower`, so they change with Python: stages whose output
depends on them declare `unicode_version()`. This module does not import numba, which keeps planning fast.
"""

import functools
import re
import unicodedata

import numpy as np

CODE_POINTS = 0x110000
# The planes in which Unicode assigns characters. The others are unassigned or for private use, without
# letters, spaces and case.
ASSIGNED = np.concatenate([np.arange(0x40000), np.arange(0xE0000, 0xE1000)])

# Bits of a character's class.
WORD = 1  # letter, mark, number, connector (_), format character: continues a word
LETTER = 2  # categories L*: what str.isalpha() accepts
SPACE = 4  # what str.isspace() accepts
LOWER = 8  # lower-case letter (Ll)
# With WORD: a letter of a script without spaces between words, which is a word by itself. With STOP: ends a
# sentence without a space.
ALONE = 16
STOP = 32  # ends a sentence
CLOSE = 64  # closing or quoting punctuation that may follow a STOP; with LETTER: upper-case (Lu); with WORD alone: Pc
EXTEND = 128  # mark or format character: continues a word, never begins one

_STOPS = ".!?…‼⁇⁈⁉؟۔։।॥።၊။។៕"
_WIDE_STOPS = "。｡！？．"
# Letters of scripts without spaces between words: line-breaking classes ID and CJ (Han, Kana, Bopomofo, Yi,
# Tangut, Nushu), then SA and AK (Thai, Lao, Burmese, Khmer, the Tai scripts, Balinese, Javanese) of Unicode
# Standard Annex 14.
_IDEOGRAPHS = (
    "\u3005-\u3007\u3021-\u3029\u3031-\u3035\u303b\u303c\u3041-\u3096\u309d-\u309f\u30a1-\u30fa\u30fc-\u30ff\u3105-\u312f"
    "\u31a0-\u31bf\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\ua000-\ua48c\uf900-\ufaff\uff66-\uff9f"
    "\U00016fe0-\U00018dff\U0001aff0-\U0001b2ff\U00020000-\U0003fffd"
)
_ABUGIDAS = (
    "\u0e01-\u0e4f\u0e81-\u0ecf\u0edc-\u0edf\u1000-\u103f\u1050-\u108f\u109a-\u109f\u1780-\u17dd\u1950-\u19cf\u1a20-\u1a7f"
    "\u1b00-\u1b4f\ua980-\ua9cf\ua9e0-\ua9ef\ua9fa-\ua9ff\uaa60-\uaadf\U00011700-\U0001172f"
)
_SYLLABLES = "\u0f00\u0f40-\u0fbc"  # Tibetan: a mark between syllables, nothing between words
_UNSPACED = f"[{_IDEOGRAPHS}{_ABUGIDAS}]"
_ZERO_WIDTH_SPACE = 0x200B
_JOINERS = (0x200C, 0x200D)

# Bits used in lower-casing.
IN_WORD = 1  # matched by the regular expression \w
IN_TOKEN = 2  # not white space
CASED = 4
CASE_IGNORABLE = 8
CHANGES = 16  # lower-casing changes it
CONTINUES = 32  # a mark of a letter (Mn, Mc) or a zero-width (non-)joiner: continues a word, never begins one
UNSPACED = 64  # a letter of a script without spaces between words: a unit by itself, with its marks
UNITS = IN_WORD | CONTINUES | UNSPACED

# Kinds of units, by their first character.
SPACED, IDEOGRAPH, ABUGIDA = 0, 1, 2
SIGMA, SMALL_SIGMA, FINAL_SIGMA, DOTTED_I = 0x3A3, 0x3C3, 0x3C2, 0x130


def unicode_version() -> dict[str, str]:
    """Return the Unicode version of the tables, with the key `unicode`, for a stage's `depends`."""
    return {"unicode": unicodedata.unidata_version}


@functools.cache
def _assigned_characters() -> str:
    return "".join(map(chr, ASSIGNED))


def _matching(pattern: str) -> np.ndarray:
    """Return, for each assigned code point, whether it matches `pattern`, a regular expression for one
    character.
    """
    found = np.zeros(len(ASSIGNED), bool)
    for match in re.finditer(f"{pattern}+", _assigned_characters()):
        found[match.start() : match.end()] = True
    return found


def _table(bits: dict[int, np.ndarray], elsewhere: int = 0) -> np.ndarray:
    table = np.full(CODE_POINTS, elsewhere, np.uint8)
    table[ASSIGNED] = 0
    for bit, where in bits.items():
        table[ASSIGNED[where]] |= np.uint8(bit)
    return _freeze(table)


def _freeze(table: np.ndarray) -> np.ndarray:
    table.flags.writeable = False
    return table


@functools.cache
def character_classes() -> np.ndarray:
    """Return the class bits of every code point, uint8 [0x110000]."""
    category = np.array(list(map(unicodedata.category, _assigned_characters())))
    major = category.astype("U1")
    # A zero width space (Cf) separates words; the other format characters (joiners, soft hyphen) are part of
    # them.
    extend = (major == "M") | ((category == "Cf") & (ASSIGNED != _ZERO_WIDTH_SPACE))
    word = (major == "L") | (major == "N") | (category == "Pc") | extend
    wide = np.isin(ASSIGNED, list(map(ord, _WIDE_STOPS)))
    quotes = np.isin(ASSIGNED, list(map(ord, "\"'")))
    return _table(
        {
            WORD: word,
            LETTER: major == "L",
            SPACE: _matching(r"\s"),
            LOWER: category == "Ll",
            ALONE: (word & ~extend & _matching(_UNSPACED)) | wide,
            STOP: np.isin(ASSIGNED, list(map(ord, _STOPS))) | wide,
            CLOSE: np.isin(category, ["Pe", "Pf", "Pi", "Lu", "Pc"]) | quotes,
            EXTEND: extend,
        }
    )


def _ends_in_final_sigma(before: str) -> np.ndarray:
    """Return, for every assigned character c, whether str.lower() turns the Σ of the string `before` + c + Σ
    into a final sigma.
    """
    probes = np.empty((len(ASSIGNED), 4), np.uint32)
    probes[:] = (ord(before), 0, SIGMA, ord("\n"))
    probes[:, 1] = ASSIGNED
    probes[DOTTED_I, 1] = ord("I")  # also cased, but its lower case is one character
    lowered = probes.tobytes().decode("utf-32-le", "surrogatepass").lower().encode("utf-32-le", "surrogatepass")
    return np.frombuffer(lowered, np.uint32).reshape(-1, 4)[:, 2] == FINAL_SIGMA


def _continuing_characters() -> np.ndarray:
    """Return, for each assigned code point, whether it is a zero-width (non-)joiner or a mark of category Mn
    or Mc other than a variation selector.
    """
    category = np.array(list(map(unicodedata.category, _assigned_characters())))
    selectors = _matching("[\ufe00-\ufe0f\U000e0100-\U000e01ef]")
    return (np.isin(category, ["Mn", "Mc"]) & ~selectors) | np.isin(ASSIGNED, _JOINERS)


@functools.cache
def unit_kinds() -> np.ndarray:
    """Return the kind of unit that each code point begins, uint8 [0x110000]: SPACED, IDEOGRAPH or ABUGIDA."""
    return _table({IDEOGRAPH: _matching(f"[{_IDEOGRAPHS}{_SYLLABLES}]"), ABUGIDA: _matching(f"[{_ABUGIDAS}]")})


@functools.cache
def lower_case() -> tuple[np.ndarray, np.ndarray]:
    """Return two tables indexed by code point: the lower case, int32 [0x110000], and the bits, uint8
    [0x110000]. The bits are IN_WORD, IN_TOKEN and the constants that follow them.

    İ (U+0130) is the only character whose lower case is two characters; the table holds the first. The lower
    case of the capital sigma depends on its neighbours; the table holds the form inside words.
    """
    text = _assigned_characters().replace(chr(DOTTED_I), "I").lower()
    lower = np.arange(CODE_POINTS, dtype=np.int32)
    lower[ASSIGNED] = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.int32)
    lower[SIGMA] = SMALL_SIGMA
    after_cased, after_nothing = _ends_in_final_sigma("A"), _ends_in_final_sigma("\n")
    bits = {
        IN_WORD: _matching(r"\w"),
        IN_TOKEN: ~_matching(r"\s"),
        CASED: after_nothing,
        CASE_IGNORABLE: after_cased & ~after_nothing,
        CHANGES: lower[ASSIGNED] != ASSIGNED,
        CONTINUES: _continuing_characters(),
        UNSPACED: _matching(_UNSPACED) & _matching(r"\w"),
    }
    return _freeze(lower), _table(bits, elsewhere=IN_TOKEN)
