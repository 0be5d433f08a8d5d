"""The data that an objective needs in addition to the batch, such as the seed and the special tokens."""

from dataclasses import dataclass

import numpy as np

from gristmill.errors import ConfigError
from trainers.objectives.shared.character_cuts import TokenTexts
from trainers.objectives.shared.spellings import SpelledTokens


@dataclass(frozen=True)
class Context:
    """The data that an objective needs in addition to the batch. `specials` maps the names of special tokens
    to their ids. `decoder_start` is the special token that the decoder of an encoder-decoder reads first; it
    is None for other families.

    The other fields that may be None are set only if the objective needs them. `word_marks`, uint8
    [vocab_size], says which tokens begin and end words (`shared.whole_words`). `character_counts`, int64
    [vocab_size], is the number of characters that begin in each token. `character_buckets` is the number of
    classes of predicted characters; the class is the code point modulo this number.
    """

    seed: int
    specials: dict[str, int]
    vocab_size: int
    family: str
    sequence_length: int
    word_marks: np.ndarray | None = None
    decoder_start: str | None = None
    texts: TokenTexts | None = None
    character_counts: np.ndarray | None = None
    spelled: SpelledTokens | None = None
    character_buckets: int | None = None

    @property
    def target_classes(self) -> int:
        """The number of classes of targets: `character_buckets` if it is set, `vocab_size` otherwise."""
        return self.character_buckets or self.vocab_size

    def special(self, name: str) -> int:
        """Return the id of a special token. Raises ConfigError if the tokenizer has no special token of this
        name.
        """
        if name not in self.specials:
            some = ", ".join(sorted(self.specials, key=lambda known: (known.startswith("<extra_id_"), known))[:40])
            raise ConfigError(
                f"objective: needs the special {name}, the tokenizer has none; train a tokenizer here, or name the objective "
                f"in `add_reserved` of the `shards` step and build the corpus again. The tokenizer has {some}"
            )
        return self.specials[name]

    @property
    def padding(self) -> int:
        """The id at positions without a token: `<pad>`, or 0 if the tokenizer has no `<pad>`. No token
        attends to these positions.
        """
        return self.specials.get("<pad>", 0)
