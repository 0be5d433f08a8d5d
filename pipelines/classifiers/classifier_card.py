"""The model card of a trained classifier, as Markdown."""

from collections.abc import Mapping
from typing import Any

_PRECISIONS = 10  # rows of the table of thresholds


def model_card(name: str, facts: dict[str, Any]) -> str:
    """Return the model card of the classifier `name`, in Markdown. `facts` is the content of metrics.json."""
    held = facts["held_out"]
    rows = [f"# {name}", "", _ABOUT[facts["config"]["kind"]], "", *data_section(facts)]
    rows += [
        "",
        "## Metrics on the held-out documents",
        "",
        f"ROC-AUC {held['roc_auc']:.4f}, average precision {held['average_precision']:.4f}, expected calibration error "
        f"{held['expected_calibration_error']:.4f}. They are valid for documents like these, in these proportions.",
        "",
        "| score at least | precision | recall | share kept |",
        "|---|---|---|---|",
    ]
    curve = held["precision_recall"]
    for index in sorted({round(i * (len(curve) - 1) / (_PRECISIONS - 1)) for i in range(_PRECISIONS)}):
        point = curve[index]
        numbers = (point["threshold"], point["precision"], point["recall"], point["kept"])
        rows.append(f"| {' | '.join(f'{number:.4f}' for number in numbers)} |")
    rows += ["", "| scores | documents | mean score | share positive |", "|---|---|---|---|"]
    for row in held["calibration"]:
        share = f"{row['mean_score']:.3f} | {row['share_positive']:.3f}"
        rows.append(f"| {row['from']:.1f} to {row['to']:.1f} | {row['documents']:,} | {share} |")
    rows += [
        "",
        "| source | held out | mean score | share positive | calibration error | on the wrong side of 0.5 |",
        "|---|---|---|---|---|---|",
    ]
    for row in facts["calibration_by_source"]:
        numbers = (row["mean_score"], row["share_positive"], row["expected_calibration_error"], row["wrong_side"])
        cells = " | ".join(f"{number:.4f}" for number in numbers)
        rows.append(f"| {_cell(row['source'])} | {row['documents']:,} | {cells} |")
    rows += _leave_one_out_section(facts)
    rows += [
        "",
        "## Model",
        "",
        *_MODELS[facts["config"]["kind"]](facts),
        "",
    ]
    return "\n".join(rows)


def data_section(facts: Mapping[str, Any]) -> list[str]:
    """Return the lines of a model card's section on its data: the documents of each class, and any warnings."""
    given = [name for name in ("labels", "scores") if facts["config"].get(name)]
    rows = [
        "## Data",
        "",
        f"| class | corpus | source | {'labelled' if given else 'kept'} documents | licence | origin |",
        "|---|---|---|---|---|---|",
    ]
    for label, entry in facts["classes"].items():
        for source in entry["sources"]:
            cells = (
                label, source["corpus"], source["source"], f"{source['kept']:,}", source["licence"], source["origin"],
            )  # fmt: skip
            rows.append(f"| {' | '.join(_cell(cell) for cell in cells)} |")
    rows += ["", "| class | trained on | held out |", "|---|---|---|"]
    rows += [f"| {label} | {c['train']:,} | {c['held_out']:,} |" for label, c in facts["classes"].items()]
    if "trained_on" in facts and facts["trained_on"] != {
        label: entry["train"] for label, entry in facts["classes"].items()
    }:
        counts = " and ".join(f"{count:,} {label}" for label, count in facts["trained_on"].items())
        rows += ["", f"balance: {facts['config']['balance']}: trained on {counts} documents."]
    rows += [line for warning in facts["warnings"] for line in ("", f"**Warning**: {warning}.")]
    if facts.get("in_both_classes"):
        rows += ["", f"{facts['in_both_classes']:,} texts are in both classes."]
    return rows


def fasttext_section(facts: Mapping[str, Any]) -> list[str]:
    """Return the lines of a model card that describe a fastText model."""
    value = ", expected_value: true" if facts["config"].get("bins") else ""
    knobs = ", ".join(f"{key} {value}" for key, value in facts["config"]["fasttext"].items())
    return [
        f"{_file(facts)}, by "
        f"fasttext-numpy2 {facts['fasttext-numpy2']}: {knobs}; seed {facts['config']['seed']}. Training is not deterministic.",
        "",
        f"In a corpus file: `- classifier: {{model: DIRECTORY{value}}}`, then a `filter` on `classifier_score`.",
    ]


def embedding_section(facts: Mapping[str, Any]) -> list[str]:
    """Return the lines of a model card that describe a linear model of embeddings."""
    config, definition = facts["config"], facts["embedding"]["definition"]
    knobs = ", ".join(f"{key} {value}" for key, value in definition["knobs"].items())
    encoder = definition["depends"].get("model xxh3_128", "unknown")
    return [
        f"{_file(facts)}: {facts['method']} regression of the {facts['width']} numbers of `{facts['embedding']['column']}`, l2 "
        f"{config['l2']:g}; seed {config['seed']}, balance {config['balance']}.",
        "",
        f"The vectors are those of the stage `{definition['stage']}` ({knobs}) with the encoder `{encoder}`: a corpus whose "
        "vectors mean anything else is refused.",
        "",
        "In a corpus file: `- embedding_classifier: {model: DIRECTORY}`, then a `filter` on `embedding_score`.",
    ]


def _columns_section(facts: Mapping[str, Any]) -> list[str]:
    config = facts["config"]
    knobs = ", ".join(f"{key} {value}" for key, value in config[config["method"]].items())
    direction = {1: "up", -1: "down", 0: "either"}
    rows = [
        f"{_file(facts)}: {config['method']}, {knobs}; seed {config['seed']}, balance {config['balance']}. Its columns have "
        f"the fingerprint `{facts['columns_fingerprint']}`: a corpus whose columns mean anything else is refused.",
        "",
        "| column | may move the score | mean size of its contribution (log-odds, held-out documents) |",
        "|---|---|---|",
    ]
    for name, size in sorted(facts["contributions"].items(), key=lambda entry: -entry[1]):
        rows.append(f"| {name} | {direction[config['columns'][name]]} | {size:.4f} |")
    use = f"`- score: {{method: {config['method']}, model: DIRECTORY}}`"
    return [*rows, "", f"In a corpus file: {use}, then a `filter` on `score`."]


def _file(facts: Mapping[str, Any]) -> str:
    return f"`{facts['model']['path']}`, {facts['model']['bytes']:,} bytes, xxh3_128 `{facts['model']['xxh3_128']}`"


_ABOUT = {
    "fasttext": "A fastText classifier that scores how much a document looks like the positive class. Trained by gristmill.",
    "columns": "A model that scores by columns of a document how much it is like the positive class. Trained by gristmill.",
    "embeddings": "A linear model that scores by the embedding of a document how much it is like the positive class. Trained by "
    "gristmill.",
}

_MODELS = {"fasttext": fasttext_section, "columns": _columns_section, "embeddings": embedding_section}

_VERDICTS = {
    "unknown": "Each class comes from one source, or its other sources have too few documents, so it is unknown whether this "
    "classifier learned the class or the source. Add a second source to a class.",
    "nothing": "**This classifier learned nothing.** On the held-out documents, it does no better than chance. Check the "
    "sources of the classes, or add documents.",
    "class": "Documents of a source that it was not trained on are classified correctly, too.",
    "source": "**This classifier learned its sources.** Trained without a source, it loses more than half of its performance "
    "above chance on that source's documents: it recognises sources, not classes. Add sources to both classes.",
}


def _leave_one_out_section(facts: dict[str, Any]) -> list[str]:
    rows = ["", "## Metrics on sources left out of training", "", _VERDICTS[facts["learned"]]]
    if not facts["leave_one_source_out"]:
        return rows
    rows += [
        "",
        f"ROC-AUC of models trained without a source, on its held-out documents and the other class. With all sources: "
        f"{facts['held_out']['roc_auc']:.4f}.",
        "",
        "| class | source left out | held out | ROC-AUC |",
        "|---|---|---|---|",
    ]
    for entry in facts["leave_one_source_out"]:
        value = "too few documents" if entry["roc_auc"] is None else f"{entry['roc_auc']:.4f}"
        rows.append(f"| {entry['class']} | {_cell(entry['source'])} | {entry['held_out']:,} | {value} |")
    return rows


def _cell(text: str) -> str:
    return " ".join(str(text).split()).replace("|", "\\|")
