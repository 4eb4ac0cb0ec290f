"""A reverse proxy for Elasticsearch and OpenSearch that re-ranks the hits of searches."""
