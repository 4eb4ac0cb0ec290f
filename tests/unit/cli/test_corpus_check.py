"""What ``fairqr corpus check`` says of files that are not right yet."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from tests.unit.cli.conftest import Ended

SCHEMA = "attributes: {gender: {field: FIELD, groups: [female, male]}}"


def write_corpus(*documents: dict[str, str], field: str = "gender") -> None:
    lines = [json.dumps({"id": str(number), **one}) for number, one in enumerate(documents)]
    Path("people.jsonl").write_text("\n".join(lines))
    Path("people.schema.yaml").write_text(SCHEMA.replace("FIELD", field))


def test_lines_with_one_problem_are_counted(fairqr: Callable[..., Ended]) -> None:
    good = {"text": "A chemist.", "gender": "female"}
    nameless = [{"name": "Ada", "gender": "female"}] * 8
    write_corpus(good, *nameless, {"text": "A poet.", "gender": "female", "id": "0"})

    ended = fairqr("corpus", "check", "people.jsonl")

    assert ended.code == 2
    assert ended.stdout.splitlines()[:3] == [
        "line 2: it has neither title nor text, only 'name', 'gender' (and 7 more lines)",
        "line 10: the id '0' is already used in line 1",
        "documents: 1",
    ]
    assert "9 lines of people.jsonl must be fixed" in ended.stderr


def test_a_field_that_no_document_has_is_named(fairqr: Callable[..., Ended]) -> None:
    write_corpus({"text": "A chemist.", "gender": "female", "born": "1815"}, field="gendr")

    ended = fairqr("corpus", "check", "people.jsonl")

    assert ended.code == 2
    assert ended.stderr == (
        "fairqr: No document has the field 'gendr', in which the schema looks for 'gender'; the "
        "documents have born, gender.\n"
    )


def test_a_table_is_refused_before_its_schema_is_asked_for(fairqr: Callable[..., Ended]) -> None:
    Path("people.csv").write_text("id,text\n1,A chemist.\n")

    ended = fairqr("corpus", "check", "people.csv")

    assert ended.code == 2
    assert "people.csv is a table, and a corpus is a JSON Lines file" in ended.stderr
