"""Fixtures of the integration tests: real servers, started for them."""

from __future__ import annotations

from tests.integration.elasticsearch_server import elasticsearch_url, secure_elasticsearch
from tests.integration.local_model import (
    minilm_cache,
    model_cache,
    pulled_minilm,
    pulled_weights,
    shared_model_cache,
)
from tests.integration.opensearch_server import opensearch_url
from tests.integration.postgres_server import postgres_server, postgres_url
from tests.integration.stores import store, store_url

__all__ = [
    "elasticsearch_url",
    "minilm_cache",
    "model_cache",
    "opensearch_url",
    "postgres_server",
    "postgres_url",
    "pulled_minilm",
    "pulled_weights",
    "secure_elasticsearch",
    "shared_model_cache",
    "store",
    "store_url",
]
