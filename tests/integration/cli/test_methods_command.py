"""Every method, final step and retriever of ``fairqr search``, by the command."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.integration.model_server import (
    Command,
    Main,
    clean_environment,
    command,
    people,
    quick,
)

__all__ = ["clean_environment", "command", "people", "quick"]

GENDER = ("--attribute", "gender", "-k", "10", "--json")


def found(command: Command | Main, corpus: Path, *more: str | Path) -> dict[str, object]:
    run = command("search", "physicist", "--corpus", corpus, *GENDER, *more)
    assert (run.code, run.stderr) == (0, ""), run.stderr
    return run.result


@pytest.mark.parametrize("method", ["plain", "mmr", "xquad", "pm2", "fa-ir"])
def test_a_baseline_ranks_without_a_model(quick: Main, people: Path, method: str) -> None:
    result = found(quick, people, "--method", method)
    assert (result["method"], result["stop_reason"]) == (method, "not_refining")
    assert result["model"] is None
    assert len({place["id"] for place in result["ranking"]}) == 10
    women = [place for place in result["ranking"] if "female" in place["groups"]["gender"]]
    if method == "plain":
        assert result["ranking"] == result["baseline"]["ranking"]
    if method in ("xquad", "pm2", "fa-ir"):
        assert len(women) > sum(
            "female" in place["groups"]["gender"] for place in result["baseline"]["ranking"]
        )


def test_the_loop_can_end_in_any_final_step(command: Command, people: Path) -> None:
    loop = ("--model", "feedback", "--set")
    fair = found(command, people, *loop, "final_step=fa-ir", "--set", "options.alpha=0.05")
    near = found(command, people, *loop, "final_step=exposure-aware")
    assert fair["ranking"] != near["ranking"]
    assert near["divergence"] <= near["baseline"]["divergence"]


def test_vector_search_is_named_in_the_result(
    quick: Main, people: Path, minilm_cache: Path
) -> None:
    dense = found(quick, people, "--method", "plain", "--retriever", "dense")
    words = found(quick, people, "--method", "plain")
    assert (words["retriever"], dense["retriever"]) == ("hybrid:minilm", "dense:minilm")
    assert all(0 <= place["score"] <= 1 for place in dense["ranking"])
    loop = found(quick, people, "--max-iterations", "0", "--retriever", "dense")
    assert loop["divergence"] <= loop["baseline"]["divergence"]


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
    weights.write_text("{}")
    refused = quick(
        *("search", "physicist", "--corpus", people, *GENDER),
        *("--method", method, "--set", f"options.weights={weights}"),
    )
    assert "does not contain weights" in refused.complaint()
