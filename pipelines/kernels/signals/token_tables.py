"""The character lists of spaCy and datatrove as one table of class bits, the words that keep their full stop,
and the kind bits of tokens. They are used for datatrove's word tokens and for its C4 and FineWeb rules.
"""

import functools
import unicodedata

import numpy as np

from pipelines.kernels.text.tables import ASSIGNED, CODE_POINTS

LETTER = 1  # L*
UPPER = 2  # any letter but a lower-case one; letters without case are both UPPER and LOWER
LOWER = 4  # any letter but a capital one
DIGIT = 8  # 0 to 9
NUMBER = 16  # N*
MARK = 32  # punctuation and quotation marks that are tokens at either end of a chunk
QUOTE = 64
PICTURE = 128  # So: emoji and other pictures, always a token of their own
CURRENCY = 256
FRONT = 512  # a token at the front of a chunk
SYMBOL = 1024  # a token of these alone is not a word
TERMINAL = 2048  # ends a sentence in some script
PUNCTUATION = 4096  # P*

# Kind bits of a token; the second to the fourth are set only for tokens without a letter.
HAS_LETTER = 1
IS_SYMBOL = 2
ENDS_SENTENCE = 4
IS_PUNCTUATION = 8
OPENS_CHUNK = 16  # first token after white space
NEEDS_RULES = 32  # not a token yet: the rest of a chunk, which `token_rules` splits

_TERMINAL = (
    "21 2E 3F 589 61D-61F 6D4 700-702 7F9 837 839 83D-83E 964-965 104A-104B 1362 1367-1368 166E 1735-1736 17D4-17D6 "
    "17D9-17DA 1803 1809 1944-1945 1AA8-1AAB 1B5A-1B5B 1B5E-1B5F 1B7D-1B7E 1C3B-1C3C 1C7E-1C7F 203C-203D 2047-2049 2E2E "
    "2E3C 2E53-2E54 3002 A4FF A60E-A60F A6F3 A6F7 A876-A877 A8CE-A8CF A92F A9C8-A9C9 AA5D-AA5F AAF0-AAF1 ABEB FE52 "
    "FE56-FE57 FF01 FF0E FF1F FF61 10A56-10A57 10F55-10F59 10F86-10F89 11047-11048 110BE-110C1 11141-11143 111C5-111C6 "
    "111CD 111DE-111DF 11238-11239 1123B-1123C 112A9 1144B-1144C 115C2-115C3 115C9-115D7 11641-11642 1173C-1173E 11944 "
    "11946 11A42-11A43 11A9B-11A9C 11C41-11C42 11EF7-11EF8 11F43-11F44 16A6E-16A6F 16AF5 16B37-16B38 16B44 16E98 1BC9F "
    "1DA88"
)
_SYMBOLS = (
    "0-8 B-1F 21-2F 3A-40 5B-60 7B-9F AB B4 BB 2013-2014 2019 201C-201E 2026 2236 2501 25BA 3001 3008-300D 3010-3011 "
    "FF05 FF08-FF09 FF0C FF11 FF1A-FF1B FF5E"
)
_MARKS = "…,:;!?¿؟¡()[]{}<>_#*&。？！，、；：～·।،۔؛٪"
_QUOTES = "'\"”“`‘´’‚,„»«「」『』（）〔〕【】《》〈〉〈〉⟦⟧"
_CURRENCY = "$£€¥฿₽﷼₴₠₡₢₣₤₥₦₧₨₩₪₫₭₮₯₰₱₲₳₵₶₷₸₹₺₻₼₾₿"
# Words that keep their full stop.
WITH_STOP = (
    "a.m. Adm. Bros. co. Co. Corp. D.C. Dr. e.g. E.g. E.G. Gen. Gov. i.e. I.e. I.E. Inc. Jr. Ltd. Md. Messrs. Mo. "
    "Mont. Mr. Mrs. Ms. p.m. Ph.D. Prof. Rep. Rev. Sen. St. vs. v.s. Mt. Ak. Ala. Apr. Ariz. Ark. Aug. Calif. Colo. "
    "Conn. Dec. Del. Feb. Fla. Ga. Ia. Id. Ill. Ind. Jan. Jul. Jun. Kan. Kans. Ky. La. Mar. Mass. Mich. Minn. Miss. "
    "Neb. Nebr. Nev. Nov. Oct. Okla. Ore. Pa. Sep. Sept. Tenn. Va. Wash. Wis."
)


def _points(ranges: str) -> np.ndarray:
    bounds = [tuple(int(bound, 16) for bound in part.split("-")) for part in ranges.split()]
    return np.concatenate([np.arange(low_high[0], low_high[-1] + 1) for low_high in bounds])


@functools.cache
def token_classes() -> np.ndarray:
    """Return the class bits of every code point, uint16 [0x110000]."""
    category = np.array(list(map(unicodedata.category, map(chr, ASSIGNED))))
    major = category.astype("U1")
    table = np.zeros(CODE_POINTS, np.uint16)
    for bit, where in (
        (LETTER, major == "L"),
        (UPPER, (major == "L") & (category != "Ll")),
        (LOWER, (major == "L") & (category != "Lu")),
        (NUMBER, major == "N"),
        (PICTURE | FRONT, category == "So"),
        (PUNCTUATION, major == "P"),
    ):
        table[ASSIGNED[where]] |= np.uint16(bit)
    for bit, characters in (
        (DIGIT, "0123456789"),
        (MARK | FRONT, _MARKS + _QUOTES),
        (QUOTE, _QUOTES),
        (CURRENCY | FRONT, _CURRENCY),
        (FRONT, "§%=—–"),
    ):
        table[list(map(ord, characters))] |= np.uint16(bit)
    table[_points(_TERMINAL)] |= np.uint16(TERMINAL | SYMBOL)
    table[_points(_SYMBOLS)] |= np.uint16(SYMBOL)
    table.flags.writeable = False
    return table
