"""Scripts written without spaces between words, as regular expressions that match one character."""

import re

# Han, kana, Bopomofo, Yi, Tangut, Nushu.
IDEOGRAPH = re.compile(
    "[\u3005-\u3007\u3021-\u3029\u3031-\u3035\u303b-\u303c\u3041-\u3096\u309d-\u309f\u30a1-\u30fa\u30fc-\u30ff"
    "\u3105-\u312f\u31a0-\u31bf\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\ua000-\ua48c\uf900-\ufaff\uff66-\uff9f"
    "\U00016fe0-\U00018dff\U0001aff0-\U0001b2ff\U00020000-\U0003fffd]"
)
# Thai, Lao, Burmese, Khmer, the Tai scripts, Balinese, Javanese.
ABUGIDA = re.compile(
    "[\u0e01-\u0e4f\u0e81-\u0ecf\u0edc-\u0edf\u1000-\u103f\u1050-\u108f\u109a-\u109f\u1780-\u17dd\u1950-\u19cf"
    "\u1a20-\u1a7f\u1b00-\u1b4f\ua980-\ua9cf\ua9e0-\ua9ef\ua9fa-\ua9ff\uaa60-\uaadf\U00011700-\U0001172f]"
)
UNSPACED = re.compile(f"{IDEOGRAPH.pattern[:-1]}{ABUGIDA.pattern[1:]}")
TIBETAN = re.compile("[\u0f00\u0f40-\u0fbc]")  # a mark between syllables, nothing between words
