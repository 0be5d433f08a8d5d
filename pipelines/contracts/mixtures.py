"""Three strategies for mixture weights: proportional, temperature and UniMax. A build publishes the weights
as suggestions; a trainer computes weights for its own token budget.
"""

from collections.abc import Mapping


def proportional(tokens: Mapping[str, int]) -> dict[str, float]:
    """Weight each source by its share of all tokens. The weights add up to 1, or are all 0 if there are no
    tokens.
    """
    total = sum(tokens.values())
    return {source: count / total for source, count in tokens.items()} if total else dict.fromkeys(tokens, 0.0)


def temperature(tokens: Mapping[str, int], exponent: float = 0.3) -> dict[str, float]:
    """Weight each source in proportion to tokens ** exponent. The weights add up to 1, or are all 0 if there
    are no tokens. The default exponent, 0.3, is that of XLM-R (Conneau et al. 2020, section 3.1) and mT5 (Xue
    et al. 2021).
    """
    powers = {source: float(count) ** exponent if count else 0.0 for source, count in tokens.items()}
    total = sum(powers.values())
    return {source: power / total for source, power in powers.items()} if total else powers


def unimax(tokens: Mapping[str, int], budget: float, max_epochs: float = 4.0) -> dict[str, float]:
    """Weight sources by UniMax (Chung et al. 2023, algorithm 1): divide `budget` tokens among the sources as
    uniformly as possible without reading any source more than `max_epochs` times. If the budget exceeds
    `max_epochs` epochs of all sources, the weights are proportional to the tokens.

    Up to four epochs of the same data are almost as good as fresh data (Muennighoff et al. 2023).
    """
    left, allotted = float(budget), dict.fromkeys(tokens, 0.0)
    smallest_first = sorted(tokens, key=lambda source: (tokens[source], source))
    for position, source in enumerate(smallest_first):
        allotted[source] = min(left / (len(smallest_first) - position), max_epochs * tokens[source])
        left -= allotted[source]
    total = sum(allotted.values())
    return {source: amount / total for source, amount in allotted.items()} if total else allotted
