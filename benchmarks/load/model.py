"""A chat server on loopback that is steered over HTTP: how long it takes, and how it fails.

``python -m benchmarks.load.model PORT LOG`` prints its port, any free one for port 0. It
speaks as much of OpenAI's API as refinement, answers and probes need. Each request is one line of
the log: the run that asked, the hash of the question, and what became of it. The run is told by the
word ``run0000017`` in its query. ``POST /control`` takes an object with ``delay`` (seconds) and
``failures`` (what share of the questions fails, by kind: ``500``, ``429``, ``cut``, ``never``, or
``garbage``).
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import math
import random
import re
import sys
from pathlib import Path
from typing import Any

from benchmarks.generated import GROUP_WORDS, group_words

MARK = re.compile(r"\brun\d{7}\b")
"""The word in a query that tells its run."""

ANSWERED = "answered"
"""What became of a question, unless it is a kind of failure."""

LEFT = "left"
"""The client had gone before it was answered."""

KEYWORDS = 4
NEVER_SECONDS = 3600


class SteeredServer:
    """Answers each question after so many seconds, or fails as it was told.

    Args:
        log: Where each question is written down; it is appended to.
    """

    def __init__(self, log: Path) -> None:
        self._log = log.open("a", encoding="ascii", buffering=1)
        self._random = random.Random(1)
        self.delay = 0.0
        self.failures: dict[str, float] = {}

    async def serve(self, port: int) -> None:
        """Serve until the process is ended."""
        server = await asyncio.start_server(self._connected, "127.0.0.1", port, backlog=1024)
        print(server.sockets[0].getsockname()[1], flush=True)
        await server.serve_forever()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                length = re.search(rb"(?i)content-length: *(\d+)", head)
                body = await reader.readexactly(int(length[1])) if length else b"{}"
                asked = json.loads(body)
                if head.startswith(b"POST /control"):
                    self.delay = asked.get("delay", self.delay)
                    self.failures = asked.get("failures", self.failures)
                    await _send(writer, 200, {})
                elif not head.startswith(b"POST"):
                    await _send(writer, 200, {"object": "list", "data": [{"id": "load"}]})
                elif not await self._answer(reader, writer, asked, body):
                    return
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def _answer(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        asked: dict[str, Any],
        body: bytes,
    ) -> bool:
        """Answer one question, and tell whether the connection is still good."""
        outcome = self._outcome()
        await asyncio.sleep(NEVER_SECONDS if outcome == "never" else self.delay)
        if reader.at_eof():
            self._write_down(asked, body, LEFT)
            return False
        if outcome in ("500", "429"):
            self._write_down(asked, body, outcome)
            await _send(writer, int(outcome), {"error": {"message": "It went wrong."}})
            return True
        # Noted once it is sent: what was not sent was not answered.
        reply = _reply(asked)
        if outcome == "garbage":
            reply["choices"][0]["message"]["content"] = "}{ \ufffd" * 50
        await _send(writer, 200, reply, stream=asked.get("stream", False), cut=outcome)
        self._write_down(asked, body, outcome)
        return outcome != "cut"

    def _outcome(self) -> str:
        drawn = self._random.random()
        for kind, share in self.failures.items():
            drawn -= share
            if drawn < 0:
                return kind
        return ANSWERED

    def _write_down(self, asked: dict[str, Any], body: bytes, outcome: str) -> None:
        mark = MARK.search(_question(asked))
        digest = hashlib.sha256(body).hexdigest()[:16]
        self._log.write(f"{mark[0] if mark else '-'} {digest} {outcome}\n")


def _question(asked: dict[str, Any]) -> str:
    return str(asked["messages"][-1]["content"])


def _reply(asked: dict[str, Any]) -> dict[str, Any]:
    """Return a well-formed reply that depends on the question alone."""
    question = _question(asked)
    choice: dict[str, Any] = {"index": 0, "finish_reason": "stop"}
    if asked.get("logprobs"):
        text = "A"
        top = [{"token": t, "logprob": math.log(p), "bytes": None} for t, p in _LABELS.items()]
        choice["logprobs"] = {"content": [{**top[0], "top_logprobs": top}], "refusal": None}
    elif "response_format" in asked:
        text = json.dumps(_keywords(question))
    elif "<passages>" in question:
        count = len(re.findall(r"(?m)^ *\[\d+\]", question))
        text = " > ".join(f"[{number}]" for number in range(count, 0, -1))
    else:
        text = "The documents name a few words."
    choice["message"] = {"role": "assistant", "content": text}
    return {
        "id": "reply",
        "object": "chat.completion",
        "created": 0,
        "model": "load",
        "choices": [choice],
        "usage": {"prompt_tokens": 100, "completion_tokens": 20, "total_tokens": 120},
    }


_LABELS = {"A": 0.6, "B": 0.4}


def _keywords(question: str) -> dict[str, list[str]]:
    group = re.search(r"<group>(?:[^<]*= *)?([^<=]*)</group>", question)
    words = group_words(group[1].strip() if group else "nobody")
    first = int(hashlib.sha256(question.encode()).hexdigest(), 16) % GROUP_WORDS
    chosen = [words[(first + n) % GROUP_WORDS] for n in range(KEYWORDS)]
    return {"topic": [], "keywords": chosen}


async def _send(
    writer: asyncio.StreamWriter,
    status: int,
    answer: dict[str, Any],
    *,
    stream: bool = False,
    cut: str = "",
) -> None:
    content = _events(answer) if stream else json.dumps(answer).encode()
    kind = "text/event-stream" if stream else "application/json"
    more = "retry-after: 1\r\n" if status == 429 else ""
    head = (
        f"HTTP/1.1 {status} Told\r\ncontent-type: {kind}\r\n{more}"
        f"content-length: {len(content)}\r\n\r\n"
    )
    writer.write(head.encode() + (content[: len(content) // 2] if cut == "cut" else content))
    await writer.drain()


def _events(answer: dict[str, Any]) -> bytes:
    """Return the reply in two pieces, as server-sent events."""
    text = answer["choices"][0]["message"]["content"]
    base = {**answer, "object": "chat.completion.chunk"}
    middle = len(text) // 2
    deltas: list[tuple[dict[str, str], str | None]] = [
        ({"role": "assistant", "content": text[:middle]}, None),
        ({"content": text[middle:]}, "stop"),
    ]
    events = [
        {
            **base,
            "usage": None,
            "choices": [{"index": 0, "delta": delta, "finish_reason": reason}],
        }
        for delta, reason in deltas
    ]
    events.append({**base, "choices": []})
    return "".join(f"data: {line}\n\n" for line in [*map(json.dumps, events), "[DONE]"]).encode()


def main(port: int, log: Path) -> None:
    """Serve until the process is ended."""
    asyncio.run(SteeredServer(log).serve(port))


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
