"""The settings of a proxy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from fairqr.graph.service.proxy.settings import proxy_settings

SOURCE = {
    "engine": "elasticsearch",
    "name": "people",
    "url": "http://127.0.0.1:9200",
    "index": "people",
    "text": ["text"],
    "attributes": {"gender": {"field": "gender", "groups": ["female", "male"]}},
}


@pytest.mark.parametrize(
    ("parameters", "has_bounds"),
    [({}, False), ({"certify": True}, True)],
    ids=["by default", "on request"],
)
def test_lists_have_a_bound_on_request_alone(
    tmp_path: Path, parameters: dict[str, Any], has_bounds: bool
) -> None:
    index = {"source": "source.yaml", "parameters": parameters}
    settings = {"cluster": "http://127.0.0.1:9200", "indexes": {"people": index}}
    (tmp_path / "source.yaml").write_text(yaml.safe_dump(SOURCE))
    (tmp_path / "proxy.yaml").write_text(yaml.safe_dump(settings))

    read = proxy_settings(tmp_path / "proxy.yaml")
    _, context = read.indexes["people"].open(read.folder)

    assert context.certify is has_bounds
