"""``fairqr trace compare``: two results side by side."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from fairqr.base.errors import InputError
from fairqr.cli.main import app
from tests.golden import record

FOLDER = Path(record.__file__).parent
USAGE = {"prompt_tokens": 300, "completion_tokens": 30, "milliseconds": 5.0}


def recorded(kind: str, name: str, **changes: Any) -> dict[str, Any]:
    """A recorded result, as the command prints it."""
    result = json.loads((FOLDER / f"{kind}.json").read_text())[name]
    result["usage"] = {"model_calls": 3, "cached_calls": 0, **USAGE}
    for part in (result, result.get("baseline")) if kind == "searches" else ():
        part["ranking"] = [
            {"rank": rank, "id": id_, "title": f"T{id_}", "score": score, "groups": groups}
            for rank, (id_, score, groups) in enumerate(part["ranking"], start=1)
        ]
    return {**result, **changes}


@pytest.fixture
def compared(tmp_path: Path) -> Any:
    """Compares two results; returns the table, or the differences by section and name."""

    def run(one: Any, other: Any, *, as_json: bool = False) -> Any:
        files = [tmp_path / "one.json", tmp_path / "other.json"]
        for file, result in zip(files, (one, other), strict=True):
            file.write_text(result if isinstance(result, str) else json.dumps(result))
        command = ["trace", "compare", *map(str, files), *(["--json"] if as_json else [])]
        done = CliRunner().invoke(app, command, env={"COLUMNS": "200"})
        if done.exception and not isinstance(done.exception, SystemExit):
            raise done.exception
        if not as_json:
            return done.stdout
        found = json.loads(done.stdout)["differences"]
        return {(it["section"], it["name"]): (it["one"], it["other"]) for it in found}

    return run


def test_searches_differ_by_settings_figures_ranks_and_keywords(compared: Any) -> None:
    fair = recorded("searches", "fusion")
    plain = recorded("searches", "plain")
    found = compared(fair, plain, as_json=True)
    assert found["asked", "method"] == ("fairqr", "plain")
    assert found["asked", "divergence"] == (fair["divergence"], plain["divergence"])
    for group, share in fair["exposure"]["gender"].items():
        assert found["exposure", f"gender {group}"] == (share, plain["exposure"]["gender"][group])
    ranks = {it["id"]: it["rank"] for it in plain["ranking"]}
    for place in fair["ranking"]:
        key = "ranking", f"{place['id']} {place['title']}"
        moved = place["rank"], ranks.get(place["id"])
        assert found.get(key) == (None if moved[0] == moved[1] else moved)
    assert found["iterations", "1 refinements gender=female keywords"] == ("woman, female", None)
    assert found["iterations", "1 refinements gender=male keywords"] == ("man, theory", None)
    assert not [name for _, name in found if "score" in name or name.endswith("ids")]


def test_times_and_last_digits_are_no_difference(compared: Any) -> None:
    one = recorded("searches", "fusion")
    other = {**one, "usage": {**one["usage"], "milliseconds": 9.0}}
    other["divergence"] *= 1 + 1e-12
    assert compared(one, other).splitlines()[-1] == "0 differences"
    assert compared(one, other, as_json=True) == {}


def test_people_see_what_differs(compared: Any) -> None:
    one = recorded("searches", "fusion")
    text = compared(one, {**one, "stop_reason": "budget", "query": "\x1b[31mred [bold]"})
    assert [line.split() for line in text.splitlines()[1:]] == [
        ["query", "physicist", "[31mred", "[bold]"],
        ["stop_reason", "no_improvement", "budget"],
        ["2", "differences"],
    ]


@pytest.mark.parametrize(
    ("kind", "names", "key"),
    [
        ("answers", ("one", "fair"), ("asked", "method")),
        ("answers", ("one", "many"), ("counts", "samples")),
        ("probes", ("gender", "continent"), ("asked", "attribute")),
    ],
)
def test_answers_and_probes_are_compared_too(
    compared: Any, kind: str, names: tuple[str, str], key: tuple[str, str]
) -> None:
    one, other = (recorded(kind, name) for name in names)
    found = compared(one, other, as_json=True)
    assert key in found
    assert compared(one, one, as_json=True) == {}


@pytest.mark.parametrize("content", ["", "[]", "5", "{}", "[" * 100_000, '{"query": "x"}', "\0"])
def test_what_is_no_result_is_refused(compared: Any, content: str) -> None:
    with pytest.raises(InputError, match=r"one\.json is not a result; name files that"):
        compared(content, content)


def test_two_kinds_cannot_be_compared(compared: Any) -> None:
    with pytest.raises(InputError, match="One result is of 'search', the other of 'probe';"):
        compared(recorded("searches", "plain"), recorded("probes", "gender"))


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    command = ["trace", "compare", str(tmp_path / "a"), str(tmp_path / "b")]
    done = CliRunner().invoke(app, command)
    assert isinstance(done.exception, InputError)
    assert "a cannot be read: No such file" in str(done.exception)
