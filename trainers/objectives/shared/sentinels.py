"""Replace runs of tokens with sentinels, as T5 reads and writes them (Raffel et al., 2020, section 3.1.4)."""

import numpy as np

from gristmill.compilation import kernel
from trainers.objectives.shared.context import Context
from trainers.objectives.shared.ragged import Ragged


def sentinel_ids(context: Context) -> np.ndarray:
    """Return the ids of the sentinels `<extra_id_0>`, `<extra_id_1>` and so on, int64. Raises ConfigError if
    there are none.
    """
    found = [context.special("<extra_id_0>")]
    while f"<extra_id_{len(found)}>" in context.specials:
        found.append(context.specials[f"<extra_id_{len(found)}>"])
    return np.array(found, dtype=np.int64)


def replace_with_sentinels(
    content: Ragged, noise: np.ndarray, sentinels: np.ndarray, closing: bool = False
) -> tuple[Ragged, Ragged]:
    """Return (inputs, targets) of documents in which `noise`, bool [tokens], marks the tokens to replace. In
    the inputs, each run of marked tokens becomes one sentinel. Each document uses the `sentinels` in order,
    from the first; when they run out, its remaining runs stay in the inputs. Its target consists of the
    sentinels used, each followed by its run. With `closing`, a target that is not empty ends with one more
    sentinel, if any is left.
    """
    inputs = np.empty(len(noise), dtype=np.int64)
    targets = np.empty(2 * len(noise) + len(content.sizes), dtype=np.int64)
    starts, goals = np.zeros_like(content.offsets), np.zeros_like(content.offsets)
    arrays = (inputs, starts, targets, goals)
    _replace(content.tokens, content.offsets, noise, sentinels, closing, *arrays)
    return Ragged(inputs[: starts[-1]], starts), Ragged(targets[: goals[-1]], goals)


@kernel(nogil=True)
def _replace(
    tokens: np.ndarray,
    offsets: np.ndarray,
    noise: np.ndarray,
    sentinels: np.ndarray,
    closing: bool,
    inputs: np.ndarray,
    input_offsets: np.ndarray,
    targets: np.ndarray,
    target_offsets: np.ndarray,
) -> None:
    given = asked = 0
    for document in range(len(offsets) - 1):
        used, inside = 0, False
        for place in range(offsets[document], offsets[document + 1]):
            if noise[place] and (inside or used < len(sentinels)):
                if not inside:
                    inputs[given] = sentinels[used]
                    targets[asked] = sentinels[used]
                    given, asked, used, inside = given + 1, asked + 1, used + 1, True
                targets[asked] = tokens[place]
                asked += 1
            else:
                inputs[given] = tokens[place]
                given, inside = given + 1, False
        if closing and 0 < used < len(sentinels):
            targets[asked] = sentinels[used]
            asked += 1
        input_offsets[document + 1], target_offsets[document + 1] = given, asked
