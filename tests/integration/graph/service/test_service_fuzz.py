"""The API, fuzzed from its own description: nothing that is sent makes the service fail.

It keeps its runs in PostgreSQL, which is stricter about texts and numbers than SQLite.
``FAIRQR_TEST_FUZZ`` says how many requests are made to each operation; with 1000 it takes an hour.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable
from hypothesis.internal.conjecture.utils import many
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from tests.patience import PATIENCE
from tests.servers.postgres_server import new_database
from tests.servers.service_client import PHYSICIST, Served, a_service

EXAMPLES = int(os.environ.get("FAIRQR_TEST_FUZZ", "4"))
pytestmark = pytest.mark.timeout(max(600, 30 * EXAMPLES))
CHECKS = [not_a_server_error, status_code_conformance]
CHECKS += [content_type_conformance, response_schema_conformance]
OFFERED = {"corpus": "people", "retriever": "bm25", "model": "openai:fake"}
"""What every request to run something is given, so that most of them begin."""

QUERY: str = PHYSICIST["query"]  # type: ignore[assignment]
BY_GENDER = {"attributes": ["gender"]}
PROBED = {"query": QUERY, "attribute": "gender", "protected": "female", "words": None}
QUERIES = [QUERY, {"query": "workshop", "weight": 2}]
OF_THE_RUN = {
    "search": {**OFFERED, **BY_GENDER, "query": QUERY},
    "answer": {**OFFERED, **BY_GENDER, "question": QUERY},
    "probe": {**OFFERED, **PROBED},
    "audits": {**BY_GENDER, "corpus": "people", "retriever": "bm25", "queries": QUERIES},
}
WITHIN = {"k": 60, "depth": 100, "max_iterations": 10, "samples": 20, "documents": 20, "pairs": 50}
"""The limits, and the size of the corpus; more than that is refused, as the other tests see."""

CHAT = {
    "model": "people",
    "messages": [{"role": "user", "content": PHYSICIST["query"]}],
    "fairqr": {"retriever": "bm25", "model": "openai:fake"},
}
REFUSED = ("n", "tools", "functions", "logprobs", "response_format")
"""Parameters of OpenAI's that ask for what is not offered."""

LEFT_OUT = ("stream", "prompts", "options", "discount", "target", "attributor")
"""Texts that only a few values of are right, and of which the other tests send the wrong ones."""


def _more(self: Any) -> bool:
    """What hypothesis-jsonschema 0.23 calls, and hypothesis has in another form by now."""
    if not hasattr(self, "_steps"):
        self.__enter__()
        self._steps = iter(self)
    for _ in self._steps:
        return True
    self.__exit__(None)
    return False


if not hasattr(many, "more"):
    many.more = _more  # type: ignore[attr-defined]


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory, postgres_server: str) -> Iterator[Served]:
    limits = (
        'traffic.rate = ""\ntraffic.live = 1000\ntraffic.queue = 1000\nlimits.body_bytes = 20_000'
    )
    with new_database(postgres_server) as url:
        folder = tmp_path_factory.mktemp("fuzz")
        with a_service(folder, "--database", url, settings=limits) as running:
            yield running


def test_nothing_that_is_sent_makes_it_fail(service: Served) -> None:
    assert len(fuzzed(service, GenerationMode.NEGATIVE)) >= 12


def test_no_run_that_begins_makes_it_fail(service: Served) -> None:
    """Half of what is sent is for what is there, with any figures that the description allows."""
    ended: list[int] = []
    half = itertools.cycle([True, False])

    def offered(case: Any) -> None:
        if next(half):
            return
        kind = case.path.removeprefix("/v1/").partition("/")[0]
        if case.method == "POST" and kind in OF_THE_RUN:
            kept = {name: it for name, it in case.body.items() if name not in LEFT_OUT}
            for name, most in WITHIN.items():
                if isinstance(kept.get(name), int):
                    kept[name] = 1 + kept[name] % most
            if (kept.get("depth") or 1000) <= (kept.get("k") or 1):
                del kept["depth"]
            case.body = {**kept, **OF_THE_RUN[kind]}
        if case.path == "/openai/v1/chat/completions":
            kept = {name: it for name, it in case.body.items() if name not in REFUSED}
            case.body = {**kept, **CHAT}

    def look(case: Any, answer: Any) -> None:
        # A stream has started with 200 before it can tell of an error.
        assert "urn:fairqr:error:internal" not in answer.text
        if case.method == "POST":
            ended.append(answer.status_code)

    tried = fuzzed(service, GenerationMode.POSITIVE, offered, look)
    described = service.client.get("/openapi.json").json()["paths"]
    assert tried == {f"{it.upper()} {path}" for path, its in described.items() for it in its}
    assert ended.count(200) >= EXAMPLES
    failed = service.client.get("/v1/runs?limit=200&status=failed").json()["runs"]
    for run in failed:
        found = service.client.get(f"/v1/runs/{run['id']}").json()
        assert found["problem"]["type"] != "urn:fairqr:error:internal"


def fuzzed(
    service: Served,
    mode: GenerationMode,
    change: Callable[[Any], None] = lambda case: None,
    told: Callable[[Any, Any], None] = lambda case, answer: None,
) -> set[str]:
    """Send requests to all operations that may be wrong or right so, and return their names.

    Args:
        service: What is attacked.
        mode: Requests that the description allows, or that it does not.
        change: Changes a request before it is sent.
        told: Of each request and its answer.
    """
    description = schemathesis.openapi.from_url(f"{service.url}/openapi.json")
    tried = set()
    for found in description.get_all_operations():
        operation = found.ok()
        if mode is GenerationMode.NEGATIVE and "{id}" in operation.path:
            continue  # nearly each text may be an id, so hundreds would be drawn for nothing

        @settings(
            max_examples=EXAMPLES,
            derandomize=True,
            phases=[Phase.generate],
            suppress_health_check=[*HealthCheck],
        )
        @given(case=operation.as_strategy(generation_mode=mode))
        def send(case: Any) -> None:
            # A key that is made up is refused, and the rest of the request never looked at.
            case.headers.pop("Authorization", None)
            # No encoder is pulled here, which a service tells by 503.
            for asked in (case.body, isinstance(case.body, dict) and case.body.get("fairqr")):
                if isinstance(asked, dict) and asked.get("retriever") in ("dense", "hybrid"):
                    asked["retriever"] = "bm25"
            change(case)
            told(case, case.call_and_validate(checks=CHECKS, timeout=PATIENCE))

        try:
            send()
        except Unsatisfiable:
            continue  # nor is there anything else to be wrong with
        tried.add(operation.label)
    return tried
