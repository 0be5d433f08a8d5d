"""`classifier train`: train a quality classifier."""

import argparse

from gristmill.storage.paths import local_path
from gristmill.terminal import printable


def add_commands(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command `classifier`."""
    classifier = commands.add_parser(
        "classifier", help="train a classifier of texts or of columns on documents of built corpora"
    )
    actions = classifier.add_subparsers(dest="action", required=True, metavar="ACTION")
    train = actions.add_parser("train", help="train, measure on held-out documents, write model and model card")
    train.add_argument("config", type=local_path, help="a YAML with output and the documents of two classes")
    train.add_argument("overrides", nargs="*", default=[], metavar="a.b=value", help="fields of the YAML to change")
    train.add_argument("--overwrite", action="store_true", help="replace an existing classifier")
    train.set_defaults(handler=_train)


def _train(options: argparse.Namespace) -> int:
    from pipelines.classifiers.train_classifier import load_classifier_config, train

    config = load_classifier_config(options.config, options.overrides)
    facts = train(config, overwrite=options.overwrite)
    for warning in facts["warnings"]:
        print(f"warning: {warning}")
    for left in (left for left in facts["leave_one_source_out"] if left["roc_auc"] is not None):
        print(f"without {printable(left['source'])} ({left['class']}): ROC-AUC {left['roc_auc']:.4f} on its documents")
    if facts["learned"] == "source":
        print("warning: it learned its sources rather than the classes; read MODEL_CARD.md")
    auc = facts["held_out"]["roc_auc"]
    print(f"{config.output}: ROC-AUC {auc:.4f} on held-out documents; read MODEL_CARD.md there")
    return 0
