"""What is kept of settings and addresses holds no secrets."""

from __future__ import annotations

import json

from fairqr.base.secrets import without_secrets


def test_secrets_are_withheld() -> None:
    described = {
        "url": "https://user:hunter2@host/search?q={{query}}&api_key=hunter2&size={{size}}#top",
        "credentials": "production",
        "body": {"apiKey": "hunter2", "query": {"token_count": 3, "tokenizer": "standard"}},
        "headers": [{"Authorization": "Bearer hunter2"}, "x?key=hunter2"],
        "runs": ("a.run", "b.run"),
    }
    shown = without_secrets(described)
    assert shown == {
        "url": "https://host/search?q={{query}}&api_key=withheld&size={{size}}#top",
        "credentials": "production",
        "body": {"apiKey": "withheld", "query": {"token_count": 3, "tokenizer": "standard"}},
        "headers": [{"Authorization": "withheld"}, "x?key=withheld"],
        "runs": ("a.run", "b.run"),
    }
    assert "hunter2" not in json.dumps(without_secrets(["--set", "model.api-key=hunter2"]))
