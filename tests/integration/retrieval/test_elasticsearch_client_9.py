"""Elasticsearch's client 9, in an environment of its own, against what client 8 is tested against.

No server of version 9 can be had here. A server of our own plays one, in
``tests/unit/retrieval/test_elasticsearch_server.py``; the real one is 8.12.2.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.servers.local_model import HOME
from tests.servers.unprivileged import skip_if_asked

pytestmark = pytest.mark.elasticsearch

ROOT = Path(__file__).parents[3]
CLIENT = ("elasticsearch==9.5.1", "elastic-transport==9.4.2")
MEANWHILE = "-p", "no:cacheprovider", "-q"


@pytest.fixture(scope="module")
def with_client_9() -> dict[str, str]:
    """An environment in which client 9 comes before the one that is installed."""
    folder = HOME / "elasticsearch-client-9.5.1"
    if not (folder / "elasticsearch").is_dir():
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps"]
        subprocess.run([*pip, "--target", str(folder), *CLIENT], check=True)
    return {**os.environ, "PYTHONPATH": str(folder)}


def run_tests(environment: dict[str, str], *arguments: str) -> str:
    """Run tests in a process of their own, and return what they say."""
    pytest_command = str(Path(sys.executable).with_name("pytest"))
    done = subprocess.run(
        [pytest_command, *MEANWHILE, *arguments],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:]
    return done.stdout


def test_client_9_is_the_one_that_is_used(with_client_9: dict[str, str]) -> None:
    code = "from fairqr.retrieval.engines.elasticsearch.client import CLIENT; print(CLIENT)"
    asked = [sys.executable, "-c", code]
    assert subprocess.check_output(asked, env=with_client_9, cwd=ROOT / "tests").strip() == b"9"


def test_client_9_bears_servers_that_misbehave(with_client_9: dict[str, str]) -> None:
    """And asks servers of versions 8 and 9 in a form that they take."""
    said = run_tests(with_client_9, "tests/unit/retrieval/test_elasticsearch_server.py")
    assert " passed" in said


@pytest.mark.promise("command")
def test_client_9_passes_the_tests_of_attached_indexes(
    with_client_9: dict[str, str], elasticsearch_url: str
) -> None:
    """Client 9 of Elasticsearch works with attached indexes as client 8 does.

    Against the real server of version 8.12.
    """
    skip_if_asked("ELASTICSEARCH")
    server = {"FAIRQR_TEST_ELASTICSEARCH_URL": elasticsearch_url, "FAIRQR_SKIP_OPENSEARCH": "1"}
    file = "tests/integration/retrieval/test_attached_elasticsearch.py"
    said = run_tests({**with_client_9, **server}, file, "-k", "elasticsearch_url")
    assert " passed" in said
