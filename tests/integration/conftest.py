"""Fixtures of the integration tests: real servers, started for them."""

from __future__ import annotations

from tests.integration.elasticsearch_server import elasticsearch_url, secure_elasticsearch
from tests.integration.local_model import model_cache, pulled_weights

__all__ = ["elasticsearch_url", "model_cache", "pulled_weights", "secure_elasticsearch"]
