"""Write the model card, in Markdown, of a model that predicts a judge's scores."""

from collections.abc import Mapping
from typing import Any

from pipelines.classifiers.classifier_card import data_section, embedding_section, fasttext_section

_VERDICTS = {
    "unknown": "The judged documents come from one source, or the sources have too few, so it is unknown whether this model "
    "learned the judge's scores or the source. Have documents of a second source judged.",
    "nothing": "**This model learned nothing.** Within the sources, its scores do not order the documents as the judge "
    "did. Check the judge's scores, or have more documents judged.",
    "class": "In a source that a model was not trained on, its scores still order the documents as the judge did.",
    "source": "**This model learned its sources.** Without a source in training, more than half of the rank correlation "
    "within that source is lost: it recognises sources, not what the judge scored.",
}


def judged_card(name: str, facts: Mapping[str, Any]) -> str:
    """Return the model card of the model `name`, in Markdown. `facts` is the content of metrics.json."""
    config, held = facts["config"], facts["held_out"]
    probabilities = config["kind"] == "judged" and not config["bins"]
    predicts = (
        f"the probability that a judge would score a document {config['threshold']:g} or more"
        if probabilities
        else "the score that a judge would give to a document"
    )
    chosen = "0.5" if probabilities else f"{config['threshold']:g}"
    rows = [f"# {name}", "", f"A model that predicts {predicts}. Trained by gristmill.", "", *data_section(facts)]
    rows += [
        "",
        "## Agreement with the judge on the held-out documents",
        "",
        f"Good documents have a judged score of {config['threshold']:g} or more; chosen are those that the model gives {chosen} "
        "or more. The values are valid for documents like these.",
        "",
        "| measure | value |",
        "|---|---|",
        f"| documents | {held['documents']:,} |",
        f"| Spearman's rank correlation | {_number(held['spearman'])} |",
        f"| F1 | {held['f1']:.4f} |",
        f"| precision | {held['precision']:.4f} |",
        f"| recall | {held['recall']:.4f} |",
        f"| share chosen | {held['chosen']:.4f} |",
        f"| share good | {held['good']:.4f} |",
        f"| ROC-AUC of good documents | {_number(held['roc_auc'])} |",
        *([] if probabilities else [f"| mean absolute error | {held['mean_absolute_error']:.4f} |"]),
        f"| calibration error | {held['calibration_error']:.4f} |",
        "",
        f"| tenth of the documents by score | documents | mean score | {'share good' if probabilities else 'mean judged'} |",
        "|---|---|---|---|",
    ]
    for number, row in enumerate(held["calibration"], 1):
        rows.append(f"| {number} | {row['documents']:,} | {row['mean_score']:.4f} | {row['mean_judged']:.4f} |")
    rows += ["", *_source_section(facts), "", "## Model", ""]
    rows += embedding_section(facts) if config["kind"] == "embeddings" else fasttext_section(facts)
    return "\n".join([*rows, ""])


def _source_section(facts: Mapping[str, Any]) -> list[str]:
    rows = [
        "## By source",
        "",
        _VERDICTS[facts["learned"]],
        "",
        "Held-out documents of each source, and in brackets what a model trained without the source reaches on them.",
        "",
        "| source | held out | mean judged | mean score | calibration error | Spearman | F1 |",
        "|---|---|---|---|---|---|---|",
    ]
    for entry in facts["by_source"]:
        name = " ".join(entry["source"].split()).replace("|", "\\|")
        if "f1" not in entry:
            rows.append(f"| {name} | {entry['held_out']:,} | too few | | | | |")
            continue
        numbers = [entry["mean_judged"], entry["mean_score"], entry["calibration_error"]]
        cells = [f"{number:.4f}" for number in numbers]
        for measure in ("spearman", "f1"):
            left_out = f" ({_number(entry[f'{measure}_left_out'])})" if f"{measure}_left_out" in entry else ""
            cells.append(f"{_number(entry[measure])}{left_out}")
        rows.append(f"| {name} | {entry['held_out']:,} | {' | '.join(cells)} |")
    return rows


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.4f}"
