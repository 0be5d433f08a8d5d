"""The names of the metrics that a task file can list, and the kinds of tasks that each applies to."""

_TEXTS = ("span", "generate")
METRIC_KINDS: dict[str, tuple[str, ...]] = {
    "accuracy": ("classify", "choose", "tag", "minimal_pairs", "facts"),
    "f1": ("classify",),
    "macro_f1": ("classify",),
    "micro_f1": ("classify",),
    "matthews": ("classify",),
    "question_accuracy": ("classify",),
    "pearson": ("regress",),
    "spearman": ("regress",),
    "entity_f1": ("tag",),
    "exact_match": (*_TEXTS, "choose"),
    "token_f1": (*_TEXTS, "choose"),
    "number_match": _TEXTS,
    "rouge1": ("generate",),
    "rouge2": ("generate",),
    "rougeL": ("generate",),
    "rougeLsum": ("generate",),
    "bleu": ("generate",),
    "chrf": ("generate",),
    "perplexity": ("generate",),
    "bits_per_byte": ("text",),
}
WRITTEN_METRICS = ("exact_match", "token_f1", "number_match", "rouge1", "rouge2", "rougeL", "rougeLsum")
"""The metrics for answers that a model writes in `evaluate`. All of them are means over items."""
