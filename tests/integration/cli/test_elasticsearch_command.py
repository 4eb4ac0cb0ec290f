"""The command over a real Elasticsearch: an attached corpus by its name."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from fairqr.retrieval.sources.corpus import find_corpus
from tests.integration.filled_elasticsearch import fill, write_source
from tests.integration.model_server import write_people

pytestmark = pytest.mark.elasticsearch

Fairqr = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def fairqr(tmp_path: Path) -> Fairqr:
    """Run the command as a user with empty folders would."""
    environment = {key: value for key, value in os.environ.items() if "FAIRQR" not in key} | {
        "FAIRQR_CONFIG": os.devnull,
        "FAIRQR_DATA_DIR": str(tmp_path / "data"),
        "FAIRQR_CACHE_DIR": str(tmp_path / "cache"),
    }

    def run(*arguments: str | Path, code: int = 0) -> subprocess.CompletedProcess[str]:
        command = [Path(sys.executable).with_name("fairqr"), *arguments]
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        assert done.returncode == code, done.stdout + done.stderr
        assert "Traceback" not in done.stderr
        return done

    return run


@pytest.fixture
def source(tmp_path: Path, elasticsearch_url: str) -> Iterator[Path]:
    """The file of a source over people, which are on the server while the test runs."""
    with ExitStack() as stack:
        corpus = find_corpus(write_people(tmp_path / "people"))
        yield write_source(fill(stack, elasticsearch_url, "people", corpus), tmp_path)


def test_an_attached_index_has_a_name_like_any_other(fairqr: Fairqr, source: Path) -> None:
    """It is listed and described, and nothing but its name is ever deleted."""
    fairqr("attach", source)
    assert "people\telasticsearch\t60 documents" in fairqr("index", "list").stdout
    assert fairqr("source", "list").stdout.startswith("people\telasticsearch\t")
    assert "engine: elasticsearch" in fairqr("source", "show", "people").stdout
    info = json.loads(fairqr("index", "info", "people", "--json").stdout)
    assert info["attributes"]["gender"]["female"] == pytest.approx(1 / 3)
    refused = fairqr("index", "delete", "people", code=2).stderr
    assert "'people' is an attached source, and fairqr never changes those" in refused
    fairqr("source", "remove", "people")
    gone = fairqr("index", "info", "people", code=2)
    assert gone.stderr.startswith("fairqr: There is no index 'people'")
    assert "60 documents" in fairqr("attach", source).stdout
