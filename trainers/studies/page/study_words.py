"""Sentences that state the findings of a study, for the top of its page."""

from collections.abc import Mapping

from trainers.studies.outcomes.paired_comparison import PairedComparison
from trainers.studies.outcomes.study_verdict import StudyVerdict
from trainers.studies.proposals.propose import Proposal
from trainers.studies.schema.study_file import Confirmation, Verdict

_VERBS = {"better": "is better than", "worse": "is worse than", "tie": "ties with"}
_ANSWERS = {"better": "Yes.", "worse": "No.", "tie": "Not measurably.", "open": "Not known yet."}
_LISTED = 4  # domains of a mixture
_MOVED = 0.01  # smaller changes of a share are not mentioned


def answer_word(verdict: StudyVerdict, entry: str | None) -> str:
    """Return the answer to the study's question according to the verdict on `entry`, such as "Yes.", or an
    empty string if `entry` was not judged.
    """
    return next((_ANSWERS[each.verdict] for each in verdict.overall if each.entry == entry), "")


def verdict_words(
    verdict: StudyVerdict,
    rule: Confirmation | Verdict,
    unit: str,
    mixtures: Mapping[str, Mapping[str, float]],
    first: str | None = None,
) -> list[str]:
    """Return a short text on each entry except the baseline: its overall verdict and, if there are several
    metrics, those on which it is better or worse. The text on the entry `first` comes first.
    """
    others = [each for each in verdict.overall if each.entry != verdict.baseline]
    others.sort(key=lambda each: each.entry != first)
    words = []
    for number, each in enumerate(others):
        described = mixture_words(mixtures.get(verdict.baseline, {})) if number == 0 else ""
        names = _named(each.entry, mixture_words(mixtures.get(each.entry, {}))), _named(verdict.baseline, described)
        words.append(f"{_sentence(each, *names, rule.level, unit)}{_by_domain(verdict, each.entry)}")
    return words


def mixture_words(shares: Mapping[str, float]) -> str:
    """Return the four largest shares of a mixture as text, followed by the number of further domains if there
    are any.
    """
    ranked = sorted(shares.items(), key=lambda item: -item[1])
    more = f" and {len(ranked) - _LISTED} more" if len(ranked) > _LISTED else ""
    return ", ".join(f"{share:.0%} {name}" for name, share in ranked[:_LISTED]) + more


def _named(entry: str, described: str) -> str:
    return f"{entry} ({described})" if described else entry


def _by_domain(verdict: StudyVerdict, entry: str) -> str:
    words = {}
    for word in ("better", "worse"):
        rows = {name: {each.entry: each.verdict for each in its} for name, its in verdict.by_metric.items()}
        words[word] = ", ".join(name for name, its in rows.items() if its[entry] == word)
    parts = [f"{word} on {names}" for word, names in words.items() if names]
    return f" It is {' and '.join(parts)}." if parts and len(verdict.by_metric) > 1 else ""


def _sentence(each: PairedComparison, entry: str, baseline: str, level: float, unit: str) -> str:
    if each.verdict == "open":
        return f"{entry} against {baseline} is open: {each.reason}."
    more = "fewer" if each.difference < 0 else "more"
    return (
        f"{entry} {_VERBS[each.verdict]} {baseline}: {abs(each.difference):.4f} {more} {unit} over "
        f"{each.pairs} paired seeds ({level:.0%} interval {each.low:+.4f} to {each.high:+.4f})."
    )


def proposal_words(proposal: Proposal, unit: str) -> list[str]:
    """Return sentences about a proposal: which shares it changes, whether the runs can distinguish it from
    the prior and, if so, by how much the prior is predicted to be worse, and for which domains the laws
    extrapolate.
    """
    prior = next(each for each in proposal.compared if each.name == "prior")
    moved = [
        f"{'more' if share > before else 'less'} {name} ({before:.1%} to {share:.1%})"
        for name, share, before in sorted(
            zip(proposal.domains, proposal.ratios, prior.ratios, strict=True), key=lambda row: -abs(row[1] - row[2])
        )
        if abs(share - before) >= _MOVED
    ]
    words = [f"The laws propose {', '.join(moved)}." if moved else "The laws propose the prior itself."]
    if prior.tied:
        words.append("The proxies cannot tell it from the prior: the prior is in the tie set.")
    elif prior.difference > 0:
        words.append(
            f"They predict {prior.difference:.4f} {unit} more for the prior ({prior.low:+.4f} to {prior.high:+.4f})."
        )
    if proposal.extrapolated:
        words.append(f"No run has such a share of {', '.join(proposal.extrapolated)}: the laws extrapolate there.")
    return words


def effect_words(effects: Mapping[str, Mapping[str, float]], unit: str) -> list[str]:
    """Return a sentence for each domain, in ascending order of effect, that says whether more of the domain
    helps, harms or makes no measurable difference. `effects` is the result of `LawSet.mean_effects` at the
    prior: the change of the weighted mean of the metrics, in `unit`, if the domain replaces 1 % of the
    mixture, and the 95 % bootstrap interval of this change.
    """
    words = []
    for name, each in sorted(effects.items(), key=lambda item: item[1]["effect"]):
        low, high = each["low"], each["high"]
        sign = "helps" if high < 0 else "harms" if low > 0 else "changes nothing that the proxies can tell"
        words.append(
            f"One more percentage point of {name}, taken from all domains in proportion, {sign}: {each['effect']:+.5f} "
            f"{unit} ({low:+.5f} to {high:+.5f})."
        )
    return words
