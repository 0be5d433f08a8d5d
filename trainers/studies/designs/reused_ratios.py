"""Keep the ratios between some domains fixed at those of an earlier proposal. As in Olmix, the study treats
these domains as one virtual domain.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from gristmill.config import load_yaml, near_match
from gristmill.errors import ConfigError
from gristmill.storage.parsing import parse_local
from trainers.studies.proposals.proposal_settings import ProposalSettings
from trainers.studies.schema.study_file import Reuse

VIRTUAL = "reused"
"""The name of the virtual domain."""


@dataclass(frozen=True)
class ReusedRatios:
    """The ratios that a study keeps fixed. `ratios` maps each kept domain to its share of the virtual domain;
    the shares sum to 1.
    """

    ratios: Mapping[str, float]

    def expand(self, shares: Mapping[str, float]) -> dict[str, float]:
        """Return the mixture of all real domains, given the `shares` of the virtual domain and of the domains
        that are not kept.
        """
        others = {name: share for name, share in shares.items() if name != VIRTUAL}
        return dict(sorted((others | {name: shares[VIRTUAL] * its for name, its in self.ratios.items()}).items()))

    def collapse(self, values: Mapping[str, float]) -> dict[str, float]:
        """Return `values` with the kept domains merged into the virtual domain: their values are added to its
        own, which is 0 if missing.
        """
        kept = sum(values.get(name, 0.0) for name in self.ratios)
        others = {name: value for name, value in values.items() if name not in self.ratios and name != VIRTUAL}
        return dict(sorted((others | {VIRTUAL: kept + values.get(VIRTUAL, 0.0)}).items()))

    def settings(self, settings: ProposalSettings) -> ProposalSettings:
        """Convert settings for the real domains to settings for the virtual domain and the domains that are
        not kept. `settings.tokens` must be set. Floors, fixed shares and caps may also name the virtual
        domain.

        Raises ConfigError for settings that do not fit the kept ratios.
        """
        assert settings.tokens is not None
        if missing := [name for name in self.ratios if name not in settings.tokens]:
            raise ConfigError(f"tokens.{missing[0]}: missing; give it for each domain of the runs")
        if named := [name for name in settings.fixed if name in self.ratios]:
            raise ConfigError(f"fixed.{named[0]}: its ratio is kept (reuse); fix {VIRTUAL}, or remove it")
        floors = {name: floor for name, floor in settings.floors.items() if name not in self.ratios}
        needed = [floors.get(VIRTUAL, 0.0)]
        for name, floor in settings.floors.items():
            if floor and name in self.ratios:
                if not self.ratios[name]:
                    raise ConfigError(f"floors.{name}: got {floor:g}, its kept ratio is 0 (reuse); remove it")
                needed.append(floor / self.ratios[name])
        return replace(
            settings,
            tokens={name: round(tokens) for name, tokens in self.collapse(settings.tokens).items()},
            prior=self.collapse(settings.prior) if settings.prior else None,
            floors=floors | ({VIRTUAL: max(needed)} if max(needed) else {}),
            max_epochs=self._caps(settings.max_epochs, settings.tokens),
        )

    def _caps(
        self, caps: float | Mapping[str, float] | None, tokens: Mapping[str, int]
    ) -> float | dict[str, float] | None:
        """Return caps in epochs for the virtual domain and the domains that are not kept. An epoch of the
        virtual domain has as many tokens as all kept domains together.
        """
        if caps is None:
            return None
        by_name = dict(caps) if isinstance(caps, Mapping) else dict.fromkeys([*tokens, VIRTUAL], caps)
        total = max(1, sum(tokens[name] for name in self.ratios))
        most = [by_name[n] * tokens[n] / ratio / total for n, ratio in self.ratios.items() if ratio and n in by_name]
        if isinstance(caps, Mapping) and VIRTUAL in caps:
            most.append(caps[VIRTUAL])
        others = {name: cap for name, cap in by_name.items() if name not in self.ratios and name != VIRTUAL}
        return others | ({VIRTUAL: min(most)} if most else {})


def read_reused(reuse: Reuse, domains: Mapping[str, object]) -> ReusedRatios:
    """Return the ratios that a study keeps, read from the proposal file that `reuse` names. `domains` are the
    domains of the study's corpus.

    Raises ConfigError if the domains to keep do not fit the file or the corpus.
    """
    weights = load_yaml(parse_local(reuse.proposal, "reuse.proposal")).get("weights")
    if not isinstance(weights, dict) or not all(isinstance(its, int | float) for its in weights.values()):
        raise ConfigError(
            f"reuse.proposal: {reuse.proposal} has no mapping `weights`; give the proposal.yaml of a study"
        )
    names = reuse.domains or tuple(name for name in weights if name in domains)
    for name in names:
        for there, where in ((weights, reuse.proposal), (domains, "the corpus")):
            if name not in there:
                raise ConfigError(
                    f"reuse.domains: got {name!r}, {where} has no such domain{near_match(name, list(there))}"
                )
    total = float(sum(weights[name] for name in names))
    if len(names) < 2 or not total > 0:
        raise ConfigError(
            f"reuse: {len(names)} domains with {total:g} of the weight are kept; ratios need two or more domains of the "
            f"corpus, and a weight above 0"
        )
    if set(names) == set(domains):
        raise ConfigError(
            "reuse: all domains of the corpus are kept, which leaves nothing to vary; name fewer in domains"
        )
    if VIRTUAL in domains:
        raise ConfigError(f"reuse: the corpus has a domain {VIRTUAL!r}, the name of the kept domains; rename it")
    return ReusedRatios({name: weights[name] / total for name in sorted(names)})
