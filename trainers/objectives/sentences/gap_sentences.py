"""Gap sentences (PEGASUS: Zhang et al., 2020, section 3.1): sentences of a document are replaced with masks,
and the decoder writes them.

    document   Pegasus is mythical .  It is pure white .  It names the model .
    input      Pegasus is mythical .  <mask>  It names the model .  <eos>
    target     It is pure white .  <eos>
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from gristmill.compilation import kernel
from tokenizer.vocabulary.specials import MASK
from trainers.objectives.shared.context import Context
from trainers.objectives.shared.pairs import Documents, PairObjective, Pairs, documents_of
from trainers.objectives.shared.prompt_format import PromptFormat, replace_text
from trainers.objectives.shared.ragged import Ragged
from trainers.rows.batch import Batch, Frame


@dataclass(frozen=True)
class GapSentences(PairObjective):
    """Write the sentences that were removed from a document, one after another in the order of the document.

    Each removed sentence leaves one `<mask>`. Of n sentences, max(floor(`rate` n), 1) are removed, as in the
    authors' code (google-research/pegasus). The paper compared rates from 0.15 to 0.75 and took an effective
    rate of 0.3 for its large model (section 6.1). `choose` says which sentences are removed:

    - `principal`: those with the highest ROUGE-1 F1 between the sentence and the rest of the document. Each is scored
      by itself, and repeated tokens count as often as they occur: the paper's Ind-Orig, its best.
    - `lead`: the first ones.
    - `random`: a new choice for every sample; all sentences are equally likely.

    Of sentences with equal scores the earlier one is chosen; the paper leaves this open, and the authors'
    code takes the later one. ROUGE is computed on token ids; the authors' code computes it on lower-cased
    words without stop words. The sentence and the rest always make up the whole document, so F1 is 2 /
    (tokens of the document) times the number of shared tokens, and long sentences score high.

    Only the part of a document that is in the row is read. `full_sentences` and `doc_sentences` cut documents
    between sentences, unless a sentence is longer than a row; other packings may cut inside any sentence. A
    document with only one sentence in the row has no target. Needs shards with `sentences`, and a source that
    has a document with two sentences. Rows have room for the whole document on either side; the authors' code
    cuts inputs at 512 tokens and targets at 256.

    Left out: masked tokens in the rest of the document (section 3.2), which the paper's large model does not
    use either; and chosen sentences that stay in the input. The large model keeps 20 % of them, and makes up
    for this with a rate of 0.45 (section 6.2).
    """

    rate: float = 0.3
    choose: Literal["principal", "lead", "random"] = "principal"
    kind: Literal["gap_sentences"] = "gap_sentences"

    frame: ClassVar[Frame] = Frame(None, None)
    families: ClassVar[tuple[str, ...]] = ("encoder_decoder",)
    needs_sentences: ClassVar[bool] = True
    least_sentences: ClassVar[int] = 2
    prompt_format: ClassVar[PromptFormat] = PromptFormat(
        names=(MASK,), gap=MASK, gaps_alone=True, closed=True, answer=replace_text
    )

    def check(self) -> None:
        """Raise ValueError unless `rate` is above 0 and below 1."""
        if not 0 < self.rate < 1:
            raise ValueError(f"rate: got {self.rate}, allowed above 0 and below 1")

    def rendered(self, tokens: int, family: str) -> int:
        """Return the most positions that the input or the target of a document can take: all its tokens and
        `<eos>`.
        """
        return tokens + 1

    def pairs(self, batch: Batch, context: Context) -> Pairs:
        assert batch.sentence_starts is not None
        documents = documents_of(batch, context)
        text, eos = documents.content, context.special("<eos>")
        bounds, held = sentence_bounds(text, batch.sentence_starts[documents.text])
        chosen = choose_gaps(self._scores(documents, context, bounds, held), held, self.rate)
        gaps, first = np.repeat(chosen, np.diff(bounds)), bounds[:-1][chosen]
        tokens, left = text.tokens.copy(), ~gaps
        tokens[first], left[first] = context.special(MASK), True
        inputs, targets = Ragged(tokens, text.offsets).keep(left), text.keep(gaps)
        return documents.pairs(inputs.with_marks(None, eos), targets.with_marks(None, eos, targets.sizes > 0))

    def _scores(self, documents: Documents, context: Context, bounds: np.ndarray, held: np.ndarray) -> np.ndarray:
        """Return a score for each sentence, float64 [sentences]. The sentences with the highest scores are
        removed.
        """
        if self.choose == "principal":
            return shared_tokens(documents.content.tokens, bounds, held).astype(np.float64)
        if self.choose == "lead":
            return np.zeros(len(bounds) - 1)
        return documents.per_token(context, "gap_sentences/choice")[bounds[:-1]]


def sentence_bounds(text: Ragged, starts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Find the sentences of the documents `text`. `starts`, bool [tokens], marks the first tokens of
    sentences; a sentence also begins at the start of every document.

    Returns `bounds`, int64 [sentences + 1], and `held`, int64 [documents + 1]: sentence s consists of the
    tokens `bounds[s]:bounds[s + 1]`, and document d of the sentences `held[d]:held[d + 1]`.
    """
    begins = starts.copy()
    begins[text.offsets[:-1][text.sizes > 0]] = True
    bounds = np.append(np.flatnonzero(begins), len(begins)).astype(np.int64)
    return bounds, np.searchsorted(bounds, text.offsets).astype(np.int64)


@kernel(nogil=True)
def shared_tokens(tokens: np.ndarray, bounds: np.ndarray, held: np.ndarray) -> np.ndarray:
    """Return the number of tokens that each sentence shares with the rest of its document, int64 [sentences].
    A token that occurs a times in the sentence and b times in the rest counts min(a, b) times. `bounds` and
    `held` are from `sentence_bounds`.
    """
    shared = np.zeros(len(bounds) - 1, dtype=np.int64)
    most = 0
    for token in tokens:
        most = max(most, token)
    whole, own = np.zeros(most + 1, dtype=np.int64), np.zeros(most + 1, dtype=np.int64)
    for document in range(len(held) - 1):
        first, end = held[document], held[document + 1]
        for place in range(bounds[first], bounds[end]):
            whole[tokens[place]] += 1
        for sentence in range(first, end):
            for place in range(bounds[sentence], bounds[sentence + 1]):
                own[tokens[place]] += 1
            for place in range(bounds[sentence], bounds[sentence + 1]):
                token = tokens[place]
                shared[sentence] += min(own[token], whole[token] - own[token]) if own[token] > 0 else 0
                own[token] = 0
        for place in range(bounds[first], bounds[end]):
            whole[tokens[place]] = 0
    return shared


@kernel(nogil=True)
def choose_gaps(scores: np.ndarray, held: np.ndarray, rate: float) -> np.ndarray:
    """Return which sentences to remove, bool [sentences]. Of each document with n sentences, the
    max(floor(`rate` n), 1) sentences with the highest `scores` [sentences] are removed, but never all. Among
    equal scores, earlier sentences come first. `held` is as `sentence_bounds` returns it.
    """
    chosen = np.zeros(len(scores), dtype=np.bool_)
    for document in range(len(held) - 1):
        first, end = held[document], held[document + 1]
        if end - first < 2:
            continue
        # The small number keeps 0.29 of 100, which is 28.999999999999996, at 29.
        wanted = min(max(int(rate * (end - first) + 1e-9), 1), end - first - 1)
        order = np.argsort(-scores[first:end], kind="mergesort")  # stable
        for place in order[:wanted]:
            chosen[first + place] = True
    return chosen
