"""Scripts and languages: reject language labels whose script the text does not use, identify languages that
have a script of their own, and return the ISO codes of languages and scripts.

Labels are checked because resiliparse compares only hashes of n-grams, so it can label a text in no language,
such as base64, as Chinese.
"""

import re
import unicodedata
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
"""Scripts of a single language, apart from minority languages of a few per cent at most."""
MOST = 0.9  # share of letters in a script from which it identifies the language
_JAPANESE = 0.1  # share of letters in kana from which it is Japanese: Chinese has none, Japanese about half
_INDEX = {name: index for index, name in enumerate(_BLOCKS, 2)}


_ISO_15924 = {
    "Latin": "Latn", "Greek": "Grek", "Cyrillic": "Cyrl", "Armenian": "Armn", "Hebrew": "Hebr", "Arabic": "Arab",
    "Thaana": "Thaa", "Devanagari": "Deva", "Bengali": "Beng", "Gurmukhi": "Guru", "Gujarati": "Gujr", "Oriya": "Orya",
    "Tamil": "Taml", "Telugu": "Telu", "Kannada": "Knda", "Malayalam": "Mlym", "Sinhala": "Sinh", "Thai": "Thai",
    "Lao": "Laoo", "Tibetan": "Tibt", "Burmese": "Mymr", "Georgian": "Geor", "Hangul": "Hang", "Khmer": "Khmr",
    "Kana": "Jpan", "Han": "Hani",
}  # fmt: skip
_UNKNOWN, _COMMON = "Zzzz", "Zyyy"  # ISO 15924: uncoded script; undetermined, as for digits and punctuation
_SCRIPT_LABEL = re.compile("([a-z]{3})_[A-Z][a-z]{3}")
_CODES: dict[str, str] = dict(
    re.findall(
        "([a-z]{3}) ([a-z]{2})",
        "aar aa abk ab afr af aka ak als sq amh am ara ar arb ar arg an asm as ava av aym ay aze az azj az bak ba bam bm bel be "
        "ben bn bis bi bod bo bos bs bre br bul bg cat ca ces cs cha ch che ce chu cu chv cv cmn zh cor kw cos co cre cr cym cy "
        "dan da deu de div dv dzo dz ekk et ell el eng en epo eo est et eus eu ewe ee fao fo fas fa fij fj fil tl fin fi fra fr "
        "fry fy ful ff gla gd gle ga glg gl glv gv grn gn gug gn guj gu hat ht hau ha hbs sh heb he her hz hin hi hmo ho hrv hr "
        "hun hu hye hy ibo ig ido io iii ii iku iu ile ie ina ia ind id ipk ik isl is ita it jav jv jpn ja kal kl kan kn kas ks "
        "kat ka kau kr kaz kk khk mn khm km kik ki kin rw kir ky kom kv kon kg kor ko kua kj kur ku lao lo lat la lav lv lim li "
        "lin ln lit lt ltz lb lub lu lug lg lvs lv mah mh mal ml mar mr mkd mk mlg mg mlt mt mon mn mri mi msa ms mya my nau na "
        "nav nv nbl nr nde nd ndo ng nep ne nld nl nno nn nob no nor no npi ne nya ny oci oc oji oj ori or orm om ory or oss os "
        "pan pa pbt ps pes fa pli pi plt mg pol pl por pt pus ps que qu roh rm ron ro run rn rus ru sag sg san sa sin si slk sk "
        "slv sl sme se smo sm sna sn snd sd som so sot st spa es sqi sq srd sc srp sr ssw ss sun su swa sw swe sv swh sw tah ty "
        "tam ta tat tt tel te tgk tg tgl tl tha th tir ti ton to tsn tn tso ts tuk tk tur tr twi tw uig ug ukr uk urd ur uzb uz "
        "uzn uz ven ve vie vi vol vo wln wa wol wo xho xh ydd yi yid yi yor yo zha za zho zh zsm ms zul zu",
    )
)
"""ISO 639-1 codes of ISO 639-3 languages. The standard variety of a macrolanguage (Standard Arabic, Mandarin) has the
code of the macrolanguage. Bokmål is `no`, as lid.176 and resiliparse write it."""


def language_code(label: str) -> str:
    """Return the ISO 639 code in a label that names a script, as its two-letter form if there is one (`en`
    for `eng_Latn`). Other labels are returned unchanged.
    """
    match = _SCRIPT_LABEL.fullmatch(label)
    return label if match is None else _CODES.get(match[1], match[1])


def main_script(text: str) -> str:
    """Return the ISO 15924 code of the script with the most letters in a text, or `Zyyy` for a text without
    letters. All scripts outside `_BLOCKS` count as one, `Zzzz`.

    Han and kana count as one script, `Jpan`, if at least a tenth of their letters are kana.
    """
    counts = _count(text)
    if not counts[1:].any():
        return _COMMON
    han, kana = _INDEX["Han"], _INDEX["Kana"]
    if counts[kana] >= _JAPANESE * (counts[han] + counts[kana]):
        counts[kana] += counts[han]
        counts[han] = 0
    best = int(counts[1:].argmax()) + 1
    return _UNKNOWN if best == 1 else _ISO_15924[list(_BLOCKS)[best - 2]]


def written_in(text: str, language: str) -> bool:
    """Return whether at least a tenth of a text's letters, and at least one, are in a script of the language.
    A language that is not in `_LANGUAGES` is expected in Latin script. For a text that is entirely ASCII,
    return whether Latin is a script of the language.
    """
    scripts = _SCRIPTS.get(language, ("Latin",))
    if text.isascii():
        return "Latin" in scripts
    counts = _count(text)
    return bool(sum(counts[_INDEX[script]] for script in scripts) >= max(1, MIN_SCRIPT_SHARE * counts[1:].sum()))


def language_of_script(text: str) -> tuple[str, float] | None:
    """Return the language that a text's script identifies, and the share of its letters in that script.
    Return None if the script does not identify a language.

    At least nine tenths of the letters must be in a script that is used by one language (`_ONE_LANGUAGE`), or
    in Han and kana together. Han and kana are Japanese if at least a tenth of the text's letters are kana,
    otherwise Chinese.
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
    """Return the number of letters in each script, indexed as in `_table`, int64 [scripts + 2]."""
    import numpy as np

    codes = np.frombuffer(text.encode("utf-32-le"), np.uint32)
    return np.bincount(_table()[codes], minlength=len(_BLOCKS) + 2)


@cache
def _table() -> "np.ndarray":
    """Return the script index of each code point, uint8 [0x110000]. Letters and combining marks in `_BLOCKS`,
    such as the vowel signs of Devanagari, have the index of their script. Other letters have 1, and all other
    code points 0.
    """
    import numpy as np

    table = np.fromiter((chr(code).isalpha() for code in range(0x110000)), np.uint8, 0x110000)
    for name, ranges in _BLOCKS.items():
        for first, last in ranges:
            for code in range(first, last + 1):
                if unicodedata.category(chr(code))[0] in "LM":
                    table[code] = _INDEX[name]
    return table
