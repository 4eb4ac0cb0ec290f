"""The embedded language model: llama.cpp in this process, behind an OpenAI-compatible endpoint.

It listens only on loopback, on a free port, and requires a random key. It starts on first use, once
per process, model and mode, and never downloads anything. There are two modes, because exactly
repeatable replies need different settings for short, similar prompts and for long prompts; see
:func:`start_local`.
"""

from __future__ import annotations

import asyncio
import secrets
import threading
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from fairqr.base.errors import ModelUnavailableError
from fairqr.base.loops import PerLoop, usable_cores
from fairqr.base.weights import is_pulled, lookup, weights_path

CONTEXT_TOKENS = 2048
"""How many tokens the prompt and the reply of one request may have together."""

PROMPTS_KEPT = 3
"""How many prompts a server keeps what it has read of: a search asks by one about the topic and by
another about groups, and an answer is written by a third."""

SAME_PROMPT = 0.5
"""The least share of a question that must be as in an earlier one, to go on from what is kept."""

READ_AT_ONCE = 512
"""How many tokens of a prompt are read in one step by a server for long prompts."""


@dataclass(frozen=True, slots=True)
class LocalServer:
    """A running llama.cpp server; it ends with the process.

    Close or cancel requests before the process ends, as asyncio does automatically: llama.cpp may
    crash at exit if a daemon thread still reads a reply.

    Attributes:
        base_url: The address to give to an OpenAI client; it ends with ``/v1``.
        api_key: The key that every request must carry; each server has a new one.
    """

    base_url: str
    api_key: str = field(repr=False)
    _server: Any = field(repr=False)  # it ends when nobody refers to it


_running: dict[tuple[Path, bool], LocalServer] = {}
_lock = threading.Lock()
_turns: PerLoop[asyncio.Lock] = PerLoop()


def check_local(name: str) -> None:
    """Check that an embedded model can be started.

    Raises:
        ModelUnavailableError: The name is unknown, xllamacpp is not installed, or the weights are
            not pulled.
    """
    title = lookup(name, "language model").title
    if find_spec("xllamacpp") is None or not is_pulled(name):
        raise ModelUnavailableError(
            f"The embedded model {name} ({title}) is not installed: run `pip install "
            f"'fairqr[local]'` and `fairqr models pull {name}`, or name another model."
        )


async def start_local(name: str, reading: bool = False) -> LocalServer:
    """Return the server of an embedded model, and start it if it does not run yet (0.3 s).

    Args:
        name: The name of embedded weights, such as ``smollm2-135m``.
        reading: If true, the server is for long prompts and reads many tokens at once. A reply then
            depends on where reading started, so each request must say ``"cache_prompt": false`` to
            start at the beginning. If false, the server is for short prompts with a common
            beginning, such as refinement: it skips the part that it has just read, and reads token
            by token.

    Raises:
        ModelUnavailableError: The name is unknown, xllamacpp is not installed, or the weights are
            not pulled or damaged.
    """
    check_local(name)
    path = weights_path(name).resolve()

    def running() -> LocalServer:
        with _lock:
            if (path, reading) not in _running:
                _running[path, reading] = _start(name, path, reading)
            return _running[path, reading]

    return await asyncio.to_thread(running)


def local_turn() -> asyncio.Lock:
    """Return the turn at the models of this process, which answer one question at a time.

    More questions at once would not be answered sooner, and their time limit would run while they
    wait in the server. Turns are first come, first served. Each event loop has its own turns.
    """
    return _turns.setdefault(asyncio.Lock())


def _start(name: str, path: Path, reading: bool) -> LocalServer:
    import xllamacpp

    key = secrets.token_urlsafe(32)
    params = xllamacpp.CommonParams()
    params.model.path = str(path)
    params.model_alias = {name}  # otherwise every reply contains the path on this machine
    params.port = 0
    params.api_keys = [key]
    # One question at a time is answered, since on a few cores more at once would not be faster. But
    # a search asks by two prompts in turn, and each slot keeps what it read of one.
    params.n_parallel = PROMPTS_KEPT
    params.slot_prompt_similarity = SAME_PROMPT
    params.n_ctx = PROMPTS_KEPT * CONTEXT_TOKENS
    # Read token by token: sums over several tokens round differently, so a reply would depend on
    # how much of its prompt the server knows from the one before. Later questions are still fast,
    # since most of their prompt is known. If prompts are always read from the beginning, many
    # tokens at once are safe.
    params.n_ubatch = READ_AT_ONCE if reading else 1
    params.cache_ram_mib = 0  # otherwise old prompts are kept, 20 MB each, until they fill 8 GB
    # One thread writes, so that a reply is the same on every machine: sums are divided among the
    # threads and round differently. Two would write 1.5 times as fast, but they spin while they
    # wait for each other, and one without a core stalls both. Reading waits less often, and its
    # result does not depend on the threads.
    params.cpuparams.n_threads = 1
    params.cpuparams_batch.n_threads = usable_cores() if reading else 1
    params.ui = False
    params.verbosity = -1  # otherwise it writes 200 lines to stderr
    try:
        server = xllamacpp.Server(params)
    except RuntimeError:
        raise ModelUnavailableError(
            f"llama.cpp cannot load {path}: run `fairqr models pull {name}`."
        ) from None
    return LocalServer(f"{server.listening_address}/v1", key, server)
