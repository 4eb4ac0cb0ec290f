"""Fixtures of the integration tests: real servers, started for them."""

from __future__ import annotations

from tests.integration.elasticsearch_server import elasticsearch_url, secure_elasticsearch

__all__ = ["elasticsearch_url", "secure_elasticsearch"]
