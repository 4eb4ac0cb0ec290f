"""A search endpoint of somebody else, described by a source, that does not answer some queries."""

from __future__ import annotations

import json
import threading
from pathlib import Path

from tests.patience import PATIENCE
from tests.servers.model_server import Answer, Asked, ModelServer

HITS = [{"key": f"d{n:02}", "sex": "MF"[n > 9], "name": f"Person {n}"} for n in range(20)]


class WaitingEndpoint:
    """Answers queries that begin with certain words once its gate is open, and others at once.

    Attributes:
        server: The server.
        gate: Opens the gate when it is set.
        queries: What was asked.
        file: The file of the source, named ``elsewhere``.
    """

    def __init__(self, folder: Path, waits_at: str) -> None:
        self.server = ModelServer()
        self.gate = threading.Event()
        self.queries: list[str] = []
        self._waits_at = waits_at
        self._answer = Answer(body=json.dumps({"items": HITS}).encode())
        self.server.does(self._answers)
        self.file = folder / "elsewhere.source.yaml"
        self.file.write_text(
            f"name: elsewhere\nengine: http\nurl: {self.server.base_url}/search\n"
            'body: {q: "{{query}}", size: "{{size}}"}\n'
            "hits: items\nid: key\ntitle: name\n"
            "attributes: {gender: {field: sex, groups: {female: [F], male: [M]}}}\n"
        )

    def _answers(self, asked: Asked) -> Answer:
        query = asked.body["q"]
        self.queries.append(query)
        if query.startswith(self._waits_at):
            self.gate.wait(PATIENCE)
        return self._answer

    def close(self) -> None:
        self.gate.set()
        self.server.close()
