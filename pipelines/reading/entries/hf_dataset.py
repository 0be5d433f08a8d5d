"""Hugging Face datasets as `save_to_disk` writes them: directories of Arrow streams. The state.json in each
directory lists its streams.
"""

import json
from collections.abc import Sequence
from pathlib import PurePosixPath

from gristmill.errors import SourceError
from pipelines.reading.entries.files import SourceFile, file_chunks
from pipelines.reading.sources.globs import matches
from pipelines.reading.sources.source import Source

_STATE = "state.json"
_STATE_BYTES = 64 << 20  # enough to list half a million files


def select_saved_files(files: Sequence[SourceFile], source: Source) -> list[SourceFile]:
    """Return the files of a source that hold the rows of a saved Dataset, or of the splits of a DatasetDict.

    Raises SourceError if there is no saved dataset, a state.json is not valid, a listed file that `include`
    and `exclude` select is missing, or a dataset was saved with an indices mapping.
    """
    where = f"source {source.name!r}"
    by_path = {file.path: file for file in files}
    selected: dict[str, SourceFile] = {}  # by path, so that a file listed twice is read once
    for state in (file for file in files if PurePosixPath(file.path).name == _STATE):
        directory = state.path.removesuffix(_STATE)
        try:
            if state.size > _STATE_BYTES:
                raise ValueError("too long")
            saved = json.loads(b"".join(file_chunks(state)))
            names = [str(entry["filename"]) for entry in saved["_data_files"]]
        except (ValueError, KeyError, TypeError, RecursionError):
            raise SourceError(
                f"{where}: {state.path} is not what save_to_disk writes; save the dataset again"
            ) from None
        if saved.get("_indices_data_files"):
            raise SourceError(
                f"{where}: {state.path} selects rows of its files; call flatten_indices() on the dataset and save it again"
            )
        for name in names:
            path = directory + name
            if path in by_path:
                selected[path] = by_path[path]
            elif matches(path, source.include) and not matches(path, source.exclude):
                raise SourceError(f"{where}: {state.path} lists {name!r}, which is not there; save the dataset again")
    if not selected:
        raise SourceError(
            f"{where}: there is no state.json under {source.root!r} that lists Arrow files; format hf_dataset reads what "
            "Dataset.save_to_disk wrote; `include` must match both"
        )
    return [selected[path] for path in sorted(selected)]
