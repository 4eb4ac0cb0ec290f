"""Attached indexes on Elasticsearch and OpenSearch servers."""
