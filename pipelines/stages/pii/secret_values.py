"""Secrets that a text assigns to a name, such as `password = "..."`. Their entropy distinguishes them from
ordinary words, and API keys from placeholders.

The measure is the Shannon entropy of the value's characters, in bits per character: 3.3 to 4 for 16 random
letters and digits; 3.3 to 3.9 for 32 random hexadecimal digits; mostly below 3.3 for an English word or an
identifier. The threshold of 3.5 for secrets is that of gitleaks' rule `generic-api-key`.
"""

import math
from collections import Counter

VALUE_BITS = 3.5  # of a value of a name: minimum bits per character
KEY_BITS = 2.0  # of a key with a known prefix: less only in placeholders such as ghp_xxxx
# The end of a name, then = or : or =>, then the value of at least 16 characters, in quotes or
# not: the entropy of fewer says little. Letters and digits must be among them.
SECRET = (
    r"(?i:(?:secret|token|passw(?:or)?d|passphrase|pwd|api[_-]?key|access[_-]?key|auth[_-]?key"
    r"|private[_-]?key|encryption[_-]?key|signing[_-]?key|credentials?)[a-z0-9_.-]{0,20})"
    r"[\"'`]?[ \t]{0,4}(?::=|=>|[:=])[ \t]{0,4}[\"'`]?\K"
    r"(?=[A-Za-z+/=_.~-]{0,255}[0-9])(?=[0-9+/=_.~-]{0,255}[A-Za-z])[A-Za-z0-9+/=_.~-]{16,256}+(?![A-Za-z0-9+/=_.~(\[-])"
)


def entropy(text: str) -> float:
    """Return the Shannon entropy of the characters of a non-empty text, in bits per character."""
    counts = Counter(text).values()
    return -sum(count / len(text) * math.log2(count / len(text)) for count in counts)


REGULAR = {
    "API_KEY": lambda key: entropy(key) < KEY_BITS,
    "SECRET": lambda value: entropy(value) < VALUE_BITS,
}
"""For each entity, a function that returns whether a match is too regular to be a secret."""
