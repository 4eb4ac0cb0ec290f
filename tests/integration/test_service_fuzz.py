"""The API, fuzzed from its own description: nothing that is sent makes the service fail.

``FAIRQR_TEST_FUZZ`` says how many requests are made to each operation.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
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

from tests.integration.service_client import Served, a_service

EXAMPLES = int(os.environ.get("FAIRQR_TEST_FUZZ", "4"))
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]


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
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    limits = 'limits.rate = ""\nlimits.live = 1000\nlimits.queue = 1000\ncaps.body_bytes = 20_000'
    with a_service(tmp_path_factory.mktemp("fuzz"), settings=limits) as running:
        yield running


@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE])
def test_nothing_that_is_sent_makes_it_fail(service: Served, mode: GenerationMode) -> None:
    description = schemathesis.openapi.from_url(f"{service.url}/openapi.json")
    fuzzed = 0
    for found in description.get_all_operations():
        operation = found.ok()

        @settings(
            max_examples=EXAMPLES,
            deadline=None,
            derandomize=True,
            phases=[Phase.generate],
            suppress_health_check=[*HealthCheck],
        )
        @given(case=operation.as_strategy(generation_mode=mode))
        def send(case: Any) -> None:
            case.call_and_validate(checks=CHECKS, timeout=30)

        try:
            send()
        except Unsatisfiable:
            continue  # there is nothing to be wrong with
        fuzzed += 1
    assert fuzzed >= 12
