"""The study file: the dataclasses into which the YAML of a study is parsed."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from trainers.config.architecture import require
from trainers.config.loss_weighting import GroupDRO
from trainers.studies.laws import LAWS
from trainers.studies.proposals.proposal_settings import ProposalSettings
from trainers.studies.schema.study_designs import (
    MOST_RUNS,
    Design,
    Simplex,
    Sobol,
    Swarm,
    check_names,
    check_weights,
)

BASELINES = ("proposal", "prior", "uniform", "temperature", "unimax", "doremi")
"""Candidates whose weights the study determines; all others need weights in `own`."""

RESERVED = {
    "name": "runs are named by the study",
    "kind": "a study pretrains",
    "seed": "set proxies.seed, or seeds of the design",
    "data.corpora": "set corpora or corpus_file",
    "data.weights": "set proposal.prior or weights of an entry",
    "data.stages": "set anneal, or data.stages of an entry",
    "data.subset": "set proxies.matched",
    "budget": "set proxies.tokens",
    "validation": "set metrics",
    "online_weights": "set doremi",
    "checkpoints": "four checkpoints are written in a run, and the last is kept until it ends",
}
"""Fields of the job that the study sets, each with what to set instead or the reason."""
_WHOLE = ("data.weights", "data.max_epochs")  # mappings by domain, each of which is one value


@dataclass(frozen=True)
class Target:
    """The large run that the study prepares for. `tokens` is its number of training tokens. `parameters` is
    the number of parameters of its model, which the plan uses only to compare costs.
    """

    tokens: int
    parameters: int | None = None

    def check(self) -> None:
        """Validate ranges."""
        require(self.tokens >= 1, f"tokens: got {self.tokens}, allowed 1 or more")
        require(
            self.parameters is None or self.parameters >= 1, f"parameters: got {self.parameters}, allowed 1 or more"
        )


@dataclass(frozen=True)
class Proxies:
    """The small training runs, of `tokens` tokens each unless an entry of the design sets `budget.tokens`.

    With `matched`, a proxy reads only a fixed random sample of each domain's sequences. The sample's share is
    the proxy's tokens divided by `target.tokens`, at most 1, so that a weight means the same number of epochs
    as in the target run. Without a `target`, and for an entry that sets `data.subset`, `matched` has no
    effect.

    In a mixture design, the prior is trained with `anchors` seeds, beginning with `seed`, and the spread of a
    metric over these runs is its noise. All other mixtures are trained with the first seed only, so their
    runs differ only in the mixture.
    """

    tokens: int
    matched: bool = True
    anchors: int = 3
    seed: int = 0

    def check(self) -> None:
        """Validate ranges."""
        require(self.tokens >= 1, f"tokens: got {self.tokens}, allowed 1 or more")
        require(
            2 <= self.anchors <= MOST_RUNS,
            f"anchors: got {self.anchors}, allowed 2 to {MOST_RUNS:,}; one run has no spread",
        )
        require(self.seed >= 0, f"seed: got {self.seed}, allowed 0 or more")


@dataclass(frozen=True)
class Metrics:
    """The metrics of a run: one value for each leaf domain in `domains`, measured on its held-out text. Lower
    is better. A domain above the leaf domains selects all leaf domains below it. By default, `domains` are
    all leaf domains whose held-out text is the same in all corpora of the study.

    `measure` is one of three:

    - `bits_per_byte`, to compare runs of one recipe;
    - `document_bits_per_byte`, measured on whole documents. It does not depend on objective, packing or
      sequence length, but takes longer;
    - `loss`, in nats per target. All runs must have the same kind of objective, because losses of different
      targets cannot be compared.

    `bits_per_byte` and `loss` are measured on up to `tokens` tokens of each domain, in rows built as in
    training. Every measure is averaged over the last `last` validations of a run, which are about a twentieth
    of the run apart.
    """

    measure: Literal["bits_per_byte", "document_bits_per_byte", "loss"] = "bits_per_byte"
    domains: tuple[str, ...] = ()
    tokens: int = 16384
    last: int = 3

    def check(self) -> None:
        """Validate ranges, and that no domain is named twice."""
        require(self.tokens >= 1, f"tokens: got {self.tokens}, allowed 1 or more")
        require(1 <= self.last <= 20, f"last: got {self.last}, allowed 1 to 20")
        require(len(set(self.domains)) == len(self.domains), f"domains: got {list(self.domains)}, each allowed once")

    @property
    def unit(self) -> str:
        """The unit of every metric, in words."""
        return "nats per target" if self.measure == "loss" else "bits per byte"


@dataclass(frozen=True)
class Confirmation:
    """Larger runs of a few `candidates`, each trained with the same `seeds` seeds, and the rule by which they
    are judged.

    Candidates are `proposal`, `prior`, `uniform`, `temperature`, `unimax`, `doremi` (which needs the section
    `doremi`) and the names of mixtures in `own`. Each run trains on `tokens` tokens, with `settings` applied
    after the study's. Each candidate is compared with `baseline`, seed by seed, by the weighted mean of the
    metrics; lower is better. A candidate is better or worse if the two-sided t interval of the mean
    difference at `level` excludes 0 and the absolute difference is at least `margin`; otherwise it ties. The
    verdict is open until at least two seeds have finished for both.
    """

    tokens: int
    candidates: tuple[str, ...] = ("proposal", "prior")
    baseline: str = "prior"
    own: dict[str, dict[str, float]] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    seeds: int = 3
    level: float = 0.95
    margin: float = 0.0

    def check(self) -> None:
        """Validate the candidates, the baseline, the mixtures in `own`, and the ranges of the numbers."""
        check_names("candidates", self.candidates)
        check_names("own", self.own)
        require(self.tokens >= 1, f"tokens: got {self.tokens}, allowed 1 or more")
        known = (*BASELINES, *self.own)
        for name in self.candidates:
            require(name in known, f"candidates: got {name!r}, allowed {', '.join(known)}; add a mixture to own")
        for name in self.own:
            require(name not in BASELINES, f"own.{name}: this name is reserved; choose another")
            check_weights(f"own.{name}", self.own[name])
            require(name in self.candidates, f"own.{name}: is not a candidate; add it to candidates")
        require(
            self.baseline in self.candidates,
            f"baseline: got {self.baseline!r}, allowed one of the candidates {', '.join(self.candidates)}",
        )
        require(len(self.candidates) >= 2, "candidates: got 1, allowed 2 or more; add another")
        require(
            2 <= self.seeds <= MOST_RUNS,
            f"seeds: got {self.seeds}, allowed 2 to {MOST_RUNS:,}; one pair has no standard error",
        )
        require(0.5 <= self.level < 1, f"level: got {self.level}, allowed 0.5 to below 1")
        require(0 <= self.margin < float("inf"), f"margin: got {self.margin}, allowed 0 or more")


@dataclass(frozen=True)
class DoReMi:
    """The mixture of DoReMi (Xie et al., 2023) as a baseline. The study trains a reference proxy on the
    prior, then a second proxy that reads all domains equally and is trained with group DRO against the
    reference. The mixture is the mean of the second proxy's weights. GroupDRO in training_file.md explains
    `step_size` and `smoothing`. DoReMi costs about as much as 2.7 proxies and uses neither the metrics nor
    the limits of the proposal.
    """

    step_size: float = 1.0
    smoothing: float = 1e-3

    def check(self) -> None:
        """Validate ranges."""
        GroupDRO("", step_size=self.step_size, smoothing=self.smoothing).check()


@dataclass(frozen=True)
class Verdict:
    """The rule by which designs without laws (`list`, `grid`, `leave_one_out`) compare their runs; `level`
    and `margin` mean the same as in `confirmation`.
    """

    level: float = 0.95
    margin: float = 0.0

    def check(self) -> None:
        """Validate ranges."""
        require(0.5 <= self.level < 1, f"level: got {self.level}, allowed 0.5 to below 1")
        require(0 <= self.margin < float("inf"), f"margin: got {self.margin}, allowed 0 or more")


@dataclass(frozen=True)
class Reuse:
    """Domains whose ratios to one another are kept from an earlier study. `proposal` is the `proposal.yaml`
    of that study. `domains` names the domains to keep; by default, all domains that both that proposal and
    the corpus have. They become one domain, `reused`, so a study of a corpus with a few new domains varies
    only the new domains and `reused`, and needs fewer runs.

    The tokens of `reused` are the sum of the kept domains' tokens, and its prior share is the sum of their
    prior shares. Its cap in epochs ensures that no kept domain exceeds its own cap. In the section `proposal`
    of the study file, `floors`, `fixed` and `max_epochs` may name `reused`. All mixtures of the study,
    including the prior and the baselines, keep the ratios; only those in `confirmation.own` may differ.
    """

    proposal: str
    domains: tuple[str, ...] = ()

    def check(self) -> None:
        """Check that no domain is named twice."""
        require(len(set(self.domains)) == len(self.domains), f"domains: got {list(self.domains)}, each allowed once")


@dataclass(frozen=True)
class Study:
    """A study: many small training runs that answer a `question`. The directory `output` holds its files.

    The runs read either existing `corpora` or corpora that the study builds from `corpus_file`. `recipe` is
    the recipe of the runs, a name or the path of a YAML file. `settings` changes fields of the recipe by
    dotted name.

    A mixture design (`swarm`, `sobol`, `simplex`) needs `target`. For each metric of the runs, the best of
    `laws` is chosen and fitted. `proposal` configures the search for the mixture with the best predicted
    metrics; its `tokens` default to the tokens of the corpora, and its `target_tokens` to the tokens of
    `target`.

    With `anneal`, a run has two phases: it trains on the prior first, and on the mixture under study for the
    final share `anneal` of its tokens. A cap in epochs covers both phases.

    `answered_by` names the candidate of `confirmation`, or the entry of the design, whose verdict answers the
    question: yes if it is better than the baseline, no if it is worse. The study's page begins with that
    answer.
    """

    name: str
    output: str
    recipe: str
    design: Design
    proxies: Proxies
    corpora: tuple[str, ...] = ()
    corpus_file: str | None = None
    question: str = ""
    answered_by: str | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    target: Target | None = None
    anneal: float | None = None
    metrics: Metrics = field(default_factory=Metrics)
    laws: tuple[str, ...] = ("log_linear",)
    proposal: ProposalSettings = field(default_factory=ProposalSettings)
    confirmation: Confirmation | None = None
    doremi: DoReMi | None = None
    reuse: Reuse | None = None
    verdict: Verdict = field(default_factory=Verdict)

    def check(self) -> None:
        """Validate the fields of the study itself, and the rules that span several sections."""
        require(
            bool(self.corpora) != (self.corpus_file is not None),
            "corpora: set either corpora, to directories of corpora, or corpus_file, from which the study builds them",
        )
        require(self.anneal is None or 0 < self.anneal < 1, f"anneal: got {self.anneal}, allowed above 0 and below 1")
        require(bool(self.laws), f"laws: are empty, allowed {', '.join(LAWS)}")
        for name in self.laws:
            require(name in LAWS, f"laws: got {name!r}, allowed {', '.join(LAWS)}")
            LAWS[name].require_library()
        for name in flat_settings(self.settings):
            check_setting("settings", name)
        if self.has_mixtures:
            require(
                self.target is not None, f"target: missing; a design of kind {self.design.kind} needs target.tokens"
            )
        else:
            for name in ("confirmation", "doremi", "reuse"):
                require(
                    getattr(self, name) is None,
                    f"{name}: the design {self.design.kind} compares its runs itself; remove this section",
                )
        require(
            self.doremi is None or self.reuse is None,
            "doremi: weighs every domain, which keeps no ratios; remove this section or reuse",
        )
        require(
            self.doremi is None or self.anneal is None,
            "doremi: its weights are those of a whole run; remove this section or anneal",
        )
        self._check_answer()
        if self.confirmation is not None:
            require(
                self.doremi is not None or "doremi" not in self.confirmation.candidates,
                "confirmation.candidates: got 'doremi'; add the section doremi, which trains it",
            )
            for name in flat_settings(self.confirmation.settings):
                check_setting("confirmation.settings", name)

    def _check_answer(self) -> None:
        its = self.confirmation or self.design
        names = its.candidates if isinstance(its, Confirmation) else tuple(getattr(its, "entries", ()))
        allowed = [name for name in names if name != getattr(its, "baseline", None)]
        require(
            self.answered_by is None or self.answered_by in allowed,
            f"answered_by: got {self.answered_by!r}, allowed the candidates or entries that are compared with the baseline: "
            f"{', '.join(allowed) or 'none'}",
        )

    @property
    def has_mixtures(self) -> bool:
        """Whether the design is a mixture design (`swarm`, `sobol` or `simplex`), so that laws can be fitted
        to its runs.
        """
        return isinstance(self.design, Swarm | Sobol | Simplex)

    @property
    def rule(self) -> "Confirmation | Verdict":
        """The section that holds the rule of the verdict: `confirmation` if there is one, else `verdict`."""
        return self.confirmation or self.verdict


def check_setting(section: str, name: str, allowed: tuple[str, ...] = ()) -> None:
    """Raise ValueError if the study itself sets the job's field `name`, unless `allowed` contains it."""
    for field_name, instead in RESERVED.items():
        same = name == field_name or name.startswith(f"{field_name}.")
        require(not same or name in allowed, f"{section}.{name}: is set by the study; {instead}")


def flat_settings(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Flatten nested settings to dotted names: `{model: {width: 64}}` becomes `{model.width: 64}`. A mapping
    with a `kind` remains one value, and so do `data.weights` and `data.max_epochs`.
    """
    flat: dict[str, Any] = {}
    for key, value in settings.items():
        name = f"{prefix}{key}"
        whole = not isinstance(value, Mapping) or "kind" in value or name in _WHOLE
        flat.update({name: value} if whole else flat_settings(value, f"{name}."))
    return flat
