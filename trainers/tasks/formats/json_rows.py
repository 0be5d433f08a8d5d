"""Read JSON: one object per line, one list of objects, and the nested JSON of some data sets."""

import json
import re
from collections.abc import Iterable, Iterator
from typing import Any

from gristmill.errors import UserError
from trainers.tasks.formats.row_set import MISSING, RowSet, used_columns
from trainers.tasks.schema.task import Layout

Record = dict[str, Any]
_DESCRIPTION = re.compile(r'\(description (?:("(?:[^"\\]|\\.)*")|([^")\s]+))\)')


def read_json_lines(data: str, layout: Layout, path: str) -> RowSet:
    """Read one JSON object per line."""
    return _columns(_objects(data, path), layout, path, "line")


def read_json_list(data: str, layout: Layout, path: str) -> RowSet:
    """Read a JSON list of objects."""
    return _columns(enumerate(_records(_whole(data, path), path), start=1), layout, path, "entry")


def read_squad(data: str, layout: Layout, path: str) -> RowSet:
    """Read SQuAD 1.1 and 2.0 (Rajpurkar et al., 2016 and 2018). A question marked impossible has no answers."""
    document = _whole(data, path)
    rows: list[tuple[int, Record]] = []
    try:
        for article in document["data"]:
            for paragraph in article["paragraphs"]:
                for entry in paragraph["qas"]:
                    row = {"id": entry["id"], "title": article.get("title"), "question": entry["question"]}
                    row["context"] = paragraph["context"]
                    impossible = entry.get("is_impossible", False)
                    row["answers"] = [] if impossible else entry.get("answers", MISSING)
                    rows.append((len(rows) + 1, row))
    except (KeyError, TypeError, AttributeError) as error:
        expected = "data: [{paragraphs: [{context, qas: [{id, question, answers}]}]}]"
        raise UserError(f"{path}: question {len(rows) + 1}: not SQuAD ({error}); expected {expected}") from None
    return _columns(rows, layout, path, "question")


def read_multirc(data: str, layout: Layout, path: str) -> RowSet:
    """Read MultiRC as SuperGLUE distributes it: one row per candidate answer, with its question and passage."""
    rows: list[tuple[int, Record]] = []
    for line, record in _objects(data, path):
        try:
            for question in record["passage"]["questions"]:
                group = f"{record['idx']}/{question['idx']}"
                for answer in question["answers"]:
                    row = {"id": f"{group}/{answer['idx']}", "group": group, "passage": record["passage"]["text"]}
                    row |= {"question": question["question"], "answer": answer["text"]}
                    row["label"] = answer.get("label", MISSING)
                    rows.append((line, row))
        except (KeyError, TypeError) as error:
            raise UserError(f"{path}: line {line}: not MultiRC ({error}); expected SuperGLUE's JSON lines") from None
    return _columns(rows, layout, path, "line")


def read_record(data: str, layout: Layout, path: str) -> RowSet:
    """Read ReCoRD as SuperGLUE distributes it: one row per query. The candidates are the distinct entities of
    the passage. `label` is the index of the first candidate that is an answer, or -1 if none is.
    """
    rows: list[tuple[int, Record]] = []
    for line, record in _objects(data, path):
        try:
            text = record["passage"]["text"]
            spans = record["passage"]["entities"]
            entities = list(dict.fromkeys(text[span["start"] : span["end"] + 1] for span in spans))
            for query in record["qas"]:
                row = {"id": f"{record['idx']}/{query['idx']}", "passage": text.replace("@highlight\n", "- ")}
                row |= {"query": query["query"], "candidates": entities, "answers": MISSING, "label": MISSING}
                if "answers" in query:
                    accepted = list(dict.fromkeys(answer["text"] for answer in query["answers"]))
                    row |= {"answers": accepted, "label": _first(entities, accepted)}
                rows.append((line, row))
        except (KeyError, TypeError) as error:
            raise UserError(f"{path}: line {line}: not ReCoRD ({error}); expected SuperGLUE's JSON lines") from None
    return _columns(rows, layout, path, "line")


def _first(entities: list[str], accepted: list[str]) -> int:
    return next((number for number, entity in enumerate(entities) if entity in accepted), -1)


def read_dialogues(data: str, layout: Layout, path: str) -> RowSet:
    """Read dialogues. A file whose name ends in `.json` or `.json.gz` holds one object in Topical-Chat's
    form, {id: {content: [{message}]}}. Any other file holds one JSON object per line, {id, turns: [{text}]};
    its `id` is by default the line number. Each turn after the first becomes a row: the turn is the `reply`,
    and all turns before it are the `history`. Empty turns are dropped.
    """
    if path.removesuffix(".gz").endswith(".json"):
        document = _whole(data, path)
        entries = enumerate(document.items() if isinstance(document, dict) else (), start=1)
        dialogues = [(number, name, entry, "content", "message") for number, (name, entry) in entries]
    else:
        dialogues = [(line, entry.get("id", line), entry, "turns", "text") for line, entry in _objects(data, path)]
    rows: list[tuple[int, Record]] = []
    for place, name, entry, turns, text in dialogues:
        try:
            replies = [" ".join(turn[text].split()) for turn in entry[turns]]
        except (KeyError, TypeError, AttributeError) as error:
            raise UserError(f"{path}: dialogue {place}: no turns ({error}); expected {turns}: [{{{text}}}]") from None
        for number in range(1, len(replies)):
            history = "\n".join(filter(None, replies[:number]))
            if replies[number] and history:
                rows.append((place, {"id": f"{name}/{number}", "history": history, "reply": replies[number]}))
    return _columns(rows, layout, path, "dialogue")


def read_webquestions(data: str, layout: Layout, path: str) -> RowSet:
    """Read WebQuestions (Berant et al., 2013) as its authors distribute it: one row per question, with the
    columns `question` and `answers`.
    """
    rows: list[tuple[int, Record]] = []
    for number, record in enumerate(_records(_whole(data, path), path), start=1):
        try:
            found = _DESCRIPTION.findall(record["targetValue"])
            answers = [json.loads(quoted) if quoted else bare for quoted, bare in found]
            rows.append((number, {"question": record["utterance"], "answers": answers}))
        except (KeyError, TypeError, ValueError) as error:
            raise UserError(
                f"{path}: entry {number}: not WebQuestions ({error}); expected utterance, targetValue"
            ) from None
    return _columns(rows, layout, path, "entry")


def _objects(data: str, path: str) -> Iterator[tuple[int, Record]]:
    for number, line in enumerate(data.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except ValueError as error:
            reason = error.msg if isinstance(error, json.JSONDecodeError) else "not a value"
            raise UserError(f"{path}: line {number}: not JSON: {reason}; correct it, or name another format") from None
        if not isinstance(record, dict):
            raise UserError(f"{path}: line {number}: holds no JSON object; expected {{column: value}}")
        check_text(line, record, f"{path}: line {number}")
        yield number, record


def _whole(data: str, path: str) -> Any:
    try:
        document = json.loads(data)
    except json.JSONDecodeError as error:
        raise UserError(
            f"{path}: line {error.lineno}: not JSON: {error.msg}; correct it, or name another format"
        ) from None
    check_text(data, document, path)
    return document


def check_text(data: str, document: Any, where: str) -> None:
    """Raise UserError if a string contains a lone surrogate, which JSON can express as an escape but UTF-8
    cannot represent.
    """
    if "\\ud" not in data and "\\uD" not in data:
        return
    try:
        json.dumps(document, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise UserError(
            f"{where}: holds half of a surrogate pair, which is not a character; correct the escape \\ud..."
        ) from None


def _records(document: Any, path: str) -> list[Record]:
    if isinstance(document, list) and all(isinstance(entry, dict) for entry in document):
        return document
    raise UserError(f"{path}: expected a list of objects; correct the file, or name another format, such as jsonl")


def _columns(rows: Iterable[tuple[int, Record]], layout: Layout, path: str, unit: str) -> RowSet:
    columns: dict[str | int, list[Any]] = {}
    used = used_columns(layout)
    filled: list[tuple[str, list[Any]]] = []
    places: list[int] = []
    for place, record in rows:
        if not places:
            columns = {name: [] for name in record}
        if not places or len(filled) < len(used):
            for name in record.keys() & used - {name for name, _ in filled}:
                columns[name] = [MISSING] * len(places)
                filled.append((name, columns[name]))
        places.append(place)
        for name, column in filled:
            column.append(record.get(name, MISSING))
    if not places:
        raise UserError(f"{path}: holds no row")
    return RowSet(path, columns, places, unit)
