"""Fixtures of the integration tests: real servers, started for them, and the real command."""

from __future__ import annotations

from tests.servers.chromium import browser, pages
from tests.servers.collector import collector
from tests.servers.elasticsearch_server import elasticsearch_url, secure_elasticsearch
from tests.servers.local_model import (
    minilm_cache,
    model_cache,
    pulled_minilm,
    pulled_weights,
    shared_model_cache,
)
from tests.servers.model_server import (
    clean_environment,
    command,
    model_server,
    people,
    quick,
)
from tests.servers.opensearch_server import opensearch_url
from tests.servers.postgres_server import postgres_server, postgres_url
from tests.servers.stores import store, store_url

__all__ = [
    "browser",
    "clean_environment",
    "collector",
    "command",
    "elasticsearch_url",
    "minilm_cache",
    "model_cache",
    "model_server",
    "opensearch_url",
    "pages",
    "people",
    "postgres_server",
    "postgres_url",
    "pulled_minilm",
    "pulled_weights",
    "quick",
    "secure_elasticsearch",
    "shared_model_cache",
    "store",
    "store_url",
]
