"""Words of texts in every script, and what texts say about a keyword."""
