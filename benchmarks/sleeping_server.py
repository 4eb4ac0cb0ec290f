"""A chat server on loopback that sleeps, then answers; it speaks just enough of OpenAI's API.

``python sleeping_server.py SECONDS`` prints its port. It answers with keywords that depend on the
question alone. ``GET /count`` says how many questions there were, and how many distinct ones,
and what was asked last.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
import sys

from generated import GROUP_WORDS, group_words

KEYWORDS = 4


class SleepingServer:
    """Answers each question after so many seconds."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._asked = 0
        self._last = b"{}"
        self._distinct: set[bytes] = set()

    async def serve(self) -> None:
        """Serve until the process is ended."""
        server = await asyncio.start_server(self._connected, "127.0.0.1", 0, backlog=1024)
        print(server.sockets[0].getsockname()[1], flush=True)
        await server.serve_forever()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                length = re.search(rb"(?i)content-length: *(\d+)", head)
                body = await reader.readexactly(int(length[1])) if length else b""
                if head.startswith(b"POST"):
                    self._asked += 1
                    self._last = body
                    self._distinct.add(body)
                    await asyncio.sleep(self._seconds)
                    answer = _completion(body)
                else:
                    answer = {"asked": self._asked, "distinct": len(self._distinct)}
                    answer["last"] = json.loads(self._last)
                content = json.dumps(answer).encode()
                writer.write(
                    b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: "
                    + str(len(content)).encode()
                    + b"\r\n\r\n"
                    + content
                )
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


def _completion(body: bytes) -> dict[str, object]:
    question = json.loads(body)["messages"][-1]["content"]
    group = re.search(r"<group>(.*?)</group>", question)
    first = int(hashlib.sha256(question.encode()).hexdigest(), 16) % GROUP_WORDS
    words = group_words(group[1] if group else "nobody")
    chosen = [words[(first + n) % GROUP_WORDS] for n in range(KEYWORDS)]
    return {
        "id": "reply",
        "object": "chat.completion",
        "created": 0,
        "model": "sleep",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": json.dumps({"keywords": chosen})},
                "finish_reason": "stop",
            }
        ],
        "usage": {"prompt_tokens": 100, "completion_tokens": 20, "total_tokens": 120},
    }


if __name__ == "__main__":
    asyncio.run(SleepingServer(float(sys.argv[1])).serve())
