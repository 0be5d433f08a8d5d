"""Read facts in the format in which LAMA stores T-REx: a file of pairs (subject, object) for each relation,
and `relations.jsonl`, which holds the statements of every relation. `paraphrases`, which LAMA's file lacks,
are optional.

    {"relation": "P19", "label": "place of birth", "template": "[X] was born in [Y] .", "paraphrases": ["[X], born in [Y]."]}
"""

import re
from dataclasses import dataclass

from gristmill.errors import UserError
from gristmill.storage.location import Location
from trainers.tasks.examples import Examples
from trainers.tasks.formats.json_rows import read_json_lines
from trainers.tasks.formats.row_set import MISSING, RowSet
from trainers.tasks.read_examples import read_examples
from trainers.tasks.schema.task import Layout, Task
from trainers.tasks.task_files import decode, find_split, read_content

STATEMENTS = "relations.jsonl"
_SUBJECT, _OBJECT = "[X]", "[Y]"
_SPACES = re.compile(r"\s+")


@dataclass(frozen=True)
class Relation:
    """A relation, such as "capital of", whose facts pair a subject with an object. `places` are the indices
    of the facts in the examples, and `objects` are their distinct objects. Each of `statements` is a pair:
    the text before the object, which contains `[X]` in place of the subject, and the text after it.
    """

    name: str
    label: str
    places: tuple[int, ...]
    objects: tuple[str, ...]
    statements: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class FactSet:
    """The facts of a split. `notes` describe the statements and relations that were left out."""

    examples: Examples
    relations: tuple[Relation, ...]
    notes: tuple[str, ...]


def read_facts(task: Task, split: str, data: Location | None) -> FactSet:
    """Read the facts of a split and the statements of its relations. Statements in which the object comes
    before the subject are left out, because models that read from left to right must know the subject first.
    Relations that have only one object or no usable statement are left out too.

    Raises UserError if a file is missing, a statement is invalid, `relations.jsonl` lacks a relation, or no
    relation is left.
    """
    examples = read_examples(task, split, data)
    assert examples.subtasks is not None
    assert examples.targets is not None
    rows = _statements(find_split(task, split, data).paths[0].parent)
    of = {str(name): number for number, name in enumerate(rows.column("relation", "relation"))}
    labels, templates = rows.column("label", "label"), rows.column("template", "template")
    paraphrases = rows.columns.get("paraphrases", [MISSING] * len(rows))  # a relation may have none
    places: dict[str, list[int]] = {}
    for place, name in enumerate(examples.subtasks):
        places.setdefault(name, []).append(place)
    found, dropped, silent = [], 0, []
    for name, its in places.items():
        number = of.get(name)
        if number is None:
            raise UserError(f"{rows.path}: has no line for relation {name}, for which there is a file; add one")
        more = () if paraphrases[number] in (MISSING, None) else paraphrases[number]
        if not isinstance(more, list | tuple):
            raise UserError(f"{rows.at(number)}: paraphrases: got {more!r}, expected a list of statements; correct it")
        texts = [templates[number], *more]
        statements = list(dict.fromkeys(_parse(text, rows.at(number)) for text in texts))
        usable = tuple((before, after) for before, after in statements if _SUBJECT in before)
        dropped += len(statements) - len(usable)
        objects = tuple(sorted({examples.targets[place][0] for place in its}))
        if usable and len(objects) > 1:
            found.append(Relation(name, labels[number], tuple(its), objects, usable))
        else:
            silent.append(name)
    if not found:
        raise UserError(f"{task.name}: {split}: no relation has a statement in which [Y] comes after [X]; add one")
    notes = (
        [f"{task.name}: {dropped:,} statements left out: their object comes before their subject"] if dropped else []
    )
    notes += (
        [f"{task.name}: relations left out, with one object or no statement: {', '.join(silent)}"] if silent else []
    )
    return FactSet(examples, tuple(found), tuple(notes))


def _statements(folder: Location) -> RowSet:
    for name in (STATEMENTS, f"{STATEMENTS}.gz"):
        if (path := folder / name).is_file():
            columns = {name: name for name in ("relation", "label", "template", "paraphrases")}
            layout = Layout(files={"all": STATEMENTS}, columns=dict(columns))
            return read_json_lines(decode(read_content(path)[0], "utf-8", path), layout, str(path))
    raise UserError(f"{folder}: has no {STATEMENTS} with the statements of the relations; add it beside the facts")


def _parse(text: object, where: str) -> tuple[str, str]:
    """Return the text before the object of a statement and the text after it. The latter is empty if it
    contains no words.
    """
    if not isinstance(text, str) or text.count(_SUBJECT) != 1 or text.count(_OBJECT) != 1:
        raise UserError(f"{where}: got {text!r}, expected a statement with one [X] and one [Y]; correct it")
    before, _, after = _SPACES.sub(" ", text).partition(_OBJECT)
    after = after.rstrip(" .")
    return before.rstrip(), after if re.search(r"\w", after) else ""
