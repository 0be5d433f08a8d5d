"""`generate`, `fill-mask`, `predict` and `export`: use trained models."""

import argparse

from gristmill.errors import ConfigError
from gristmill.storage.parsing import location_argument
from gristmill.storage.paths import local_path
from gristmill.terminal import printable


def add_commands(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the commands `generate`, `fill-mask`, `predict` and `export`."""
    generate = commands.add_parser("generate", help="continue a prompt")
    generate.add_argument("model", metavar="RUN_OR_EXPORT", type=local_path)
    generate.add_argument("--prompt", default="", help="text to continue; empty to begin a document")
    generate.add_argument("--tokens", type=int, default=100)
    generate.add_argument("--temperature", type=float, default=0.8, help="0 takes the likeliest token")
    generate.add_argument("--top-k", type=int, default=0, help="0 for all tokens")
    generate.add_argument("--top-p", type=float, default=0.95)
    generate.add_argument("--seed", type=int, default=0)
    generate.set_defaults(handler=_generate)
    fill = commands.add_parser("fill-mask", help="the tokens that an encoder predicts for <mask> in a text")
    fill.add_argument("model", metavar="RUN_OR_EXPORT", type=local_path)
    fill.add_argument("--text", required=True, help="a text that contains <mask> at least once")
    fill.add_argument("--top", type=int, default=5, help="how many of the likeliest tokens to show")
    fill.set_defaults(handler=_fill_mask)
    predict = commands.add_parser("predict", help="predict the examples of a file with a fine-tuned model")
    predict.add_argument("model", metavar="RUN_OR_EXPORT", type=local_path)
    predict.add_argument(
        "--model",
        dest="base",
        metavar="DIR",
        type=local_path,
        help="the base of an adapter, if it is no longer where it was",
    )
    predict.add_argument(
        "--input",
        metavar="FILE",
        type=location_argument,
        required=True,
        help="JSONL, CSV, TSV or Parquet, without labels; a quoted name with * means several files",
    )
    predict.add_argument("--output", metavar="FILE", type=local_path, required=True, help="a .jsonl or .parquet file")
    predict.set_defaults(handler=_predict)
    export = commands.add_parser(
        "export", help="write a run's newest checkpoint, or the best of a fine-tuning run, in Hugging Face layout"
    )
    export.add_argument("run", metavar="RUN", type=local_path)
    export.add_argument("--output", metavar="DIR", type=local_path, help="default: RUN/export")
    export.add_argument(
        "--merge", action="store_true", help="merge the parameters that the method has trained into the base's weights"
    )
    export.set_defaults(handler=_export)


def _generate(options: argparse.Namespace) -> int:
    from gristmill.config import parse
    from trainers.inference.generate import Sampling, generate

    names = ("tokens", "temperature", "top_k", "top_p", "seed")
    sampling = parse(Sampling, {name: getattr(options, name) for name in names}, "generate")
    print(
        printable(generate(options.model, options.prompt, sampling), lines=True)
    )  # the model may have learned control codes
    return 0


def _fill_mask(options: argparse.Namespace) -> int:
    from trainers.inference.fill_mask import fill_mask

    if options.top < 1:
        raise ConfigError(f"--top: got {options.top}, allowed 1 or more")
    for number, tokens in enumerate(fill_mask(options.model, options.text, options.top), 1):
        print(f"mask {number}")
        for token, share in tokens:
            print(f"{share:8.4f}  {printable(repr(token))}")
    return 0


def _predict(options: argparse.Namespace) -> int:
    from trainers.inference.predict import predict_file
    from trainers.tasks.predictions import write_predictions, write_rows

    if options.output.suffix not in (".jsonl", ".parquet"):
        raise ConfigError(f"--output: got {options.output}, expected a name that ends in .jsonl or .parquet")
    predictions = predict_file(options.model, options.input, base=options.base)
    (write_rows if options.output.suffix == ".jsonl" else write_predictions)(predictions, options.output)
    print(f"{options.output}: {len(predictions):,} predictions")
    return 0


def _export(options: argparse.Namespace) -> int:
    from trainers.inference.model_export import export_checkpoint, notes_of

    output = export_checkpoint(options.run, options.output or options.run / "export", options.merge)
    print("\n".join([str(output), *(f"note   {note}" for note in notes_of(output))]))
    return 0
