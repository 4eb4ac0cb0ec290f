"""The command over a real Elasticsearch: indexes from birth to deletion, and fair search."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from fairqr import SearchResult
from tests.integration.model_server import write_people
from tests.patience import PATIENCE

pytestmark = pytest.mark.elasticsearch

Fairqr = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def fairqr(tmp_path: Path, elasticsearch_url: str) -> Fairqr:
    """Run the command as a user with empty folders would."""
    environment = {key: value for key, value in os.environ.items() if "FAIRQR" not in key} | {
        "FAIRQR_CONFIG": os.devnull,
        "FAIRQR_DATA_DIR": str(tmp_path / "data"),
        "FAIRQR_CACHE_DIR": str(tmp_path / "cache"),
        "FAIRQR_ELASTICSEARCH_URL": elasticsearch_url,
    }

    def run(*arguments: str | Path, code: int = 0) -> subprocess.CompletedProcess[str]:
        command = [Path(sys.executable).with_name("fairqr"), *arguments]
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        assert done.returncode == code, done.stdout + done.stderr
        assert "Traceback" not in done.stderr
        return done

    return run


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    (tmp_path / "schema.yaml").write_text("attributes: {gender: {field: g, groups: [f, m]}}")
    path = tmp_path / "people.jsonl"
    path.write_text(
        "".join(json.dumps({"id": str(i), "text": "x", "g": "f"}) + "\n" for i in range(3))
    )
    return path


def test_an_index_from_birth_to_deletion(fairqr: Fairqr, corpus: Path, tmp_path: Path) -> None:
    """It is attached like any other, and found by its name alone."""
    made = fairqr("index", "create", "people", corpus, "--backend", "elasticsearch")
    assert "3 documents" in made.stdout
    assert "people\telasticsearch\t3 documents" in fairqr("index", "list").stdout
    assert fairqr("source", "list").stdout.startswith("people\telasticsearch\t")
    assert "engine: elasticsearch" in fairqr("source", "show", "people").stdout
    info = json.loads(fairqr("index", "info", "people", "--json").stdout)
    assert info["attributes"] == {"gender": {"f": 1.0, "m": 0.0}}
    more = tmp_path / "more.jsonl"
    more.write_text('{"id": "1", "text": "x", "g": "m"}\n{"id": "9", "text": "x"}\n')
    assert "2 documents written, 4 in all" in fairqr("index", "add", "people", more).stdout
    assert (
        "1 of 2 documents removed, 3 left" in fairqr("index", "remove", "people", "9", "z").stdout
    )
    assert fairqr("index", "delete", "people").stdout == "people: deleted\n"
    gone = fairqr("index", "info", "people", code=2)
    assert gone.stderr.startswith("fairqr: There is no index 'people'")
    assert fairqr("source", "list").stdout == ""


def test_an_index_that_is_gone_from_the_server_can_be_taken_off_the_list(
    fairqr: Fairqr, corpus: Path, elasticsearch_url: str
) -> None:
    fairqr("index", "create", "lost", corpus, "--backend", "elasticsearch")
    with httpx.Client(base_url=elasticsearch_url, timeout=PATIENCE, trust_env=False) as client:
        # As if it had been deleted by somebody else.
        (name,) = client.get("/fairqr-lost").raise_for_status().json()
        client.delete(f"/{name}").raise_for_status()
    first = fairqr("index", "delete", "lost", code=2)
    assert "'lost' no longer exists on" in first.stderr
    assert "lost" not in fairqr("index", "list").stdout
    assert "no index 'lost'" in fairqr("index", "delete", "lost", code=2).stderr


@pytest.mark.parametrize("attribute", ["gender", "continent"])
def test_search_lowers_the_divergence(fairqr: Fairqr, tmp_path: Path, attribute: str) -> None:
    """The same call as over the embedded index."""
    people = write_people(tmp_path / "people")
    fairqr("index", "create", "people", people, "--backend", "elasticsearch")
    done = fairqr(
        *("search", "physicist", "--corpus", "people", "-k", "20"),
        *("--attribute", attribute, "--model", "feedback", "--json"),
    )
    result = SearchResult.model_validate_json(done.stdout)
    assert result.improvement is not None
    assert result.improvement > 0
    assert len(result.ranking) == 20
    fairqr("index", "delete", "people")


def test_a_wrong_line_leaves_the_server_as_it_was(fairqr: Fairqr, corpus: Path) -> None:
    fairqr("index", "create", "kept", corpus, "--backend", "elasticsearch")
    corpus.write_text(corpus.read_text() + '{"id": "7", "text": "x", "g": "boy"}\n')
    failed = fairqr("index", "create", "kept", corpus, "--backend", "elasticsearch", code=2)
    assert "line 4" in failed.stderr
    assert json.loads(fairqr("index", "info", "kept", "--json").stdout)["documents"] == 3
    fairqr("index", "delete", "kept")
