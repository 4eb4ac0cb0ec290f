"""Methods of ``fairqr search`` that are trained, or protect a group, by the command."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.servers.model_server import Main

GENDER = ("--attribute", "gender", "-k", "10", "--json")


def found(quick: Main, corpus: Path, *more: str | Path) -> dict[str, object]:
    run = quick("search", "physicist", "--corpus", corpus, *GENDER, *more)
    assert (run.code, run.stderr) == (0, ""), run.stderr
    return run.result


@pytest.mark.parametrize("method", ["deltr", "dlf"])
def test_weights_that_were_trained_on_topics_rank_others(
    quick: Main, people: Path, tmp_path: Path, method: str
) -> None:
    collection = people.parent
    topics = [{"id": "1", "title": "woman laboratory"}, {"id": "2", "title": "man workshop"}]
    (collection / "topics.jsonl").write_text("".join(json.dumps(t) + "\n" for t in topics))
    judged = [f"1 0 p{n:02} 1\n" for n in range(0, 60, 3)]
    judged += [f"2 0 p{n:02} 1\n" for n in range(1, 60, 3)]
    (collection / "qrels.txt").write_text("".join(judged))
    weights = tmp_path / "weights.json"
    run = quick("train", method, "-o", weights, "--collection", collection)
    assert (run.code, run.stderr) == (0, ""), run.stderr
    assert "2 topics" in run.stdout
    result = found(quick, people, "--method", method, "--set", f"options.weights={weights}")
    assert len(result["ranking"]) == 10
    again = found(quick, people, "--method", method, "--set", f"options.weights={weights}")
    assert again["ranking"] == result["ranking"]
    if method == "deltr":
        other = tmp_path / "other.json"
        quick("train", method, "-o", other, "--collection", collection, "--protected", "male")
        assert other.read_bytes() != weights.read_bytes()


def test_protected_groups_are_named_where_a_method_protects_any(quick: Main, people: Path) -> None:
    method = (people, "--method", "fa-ir", "--retriever", "bm25")
    male, female = (
        found(quick, *method, "--set", f"options.protected={group}") for group in ("male", "female")
    )
    assert male["ranking"] != female["ranking"]
    asked = ("search", "physicist", "--corpus", people, *GENDER)
    assert "has no options" in quick(*asked, "--set", "options.protected=female").complaint()
