"""The command ``fairqr mcp``."""

from __future__ import annotations

import contextlib
import logging
import os
from importlib.util import find_spec
from typing import TYPE_CHECKING

from fairqr.base.errors import ConfigError
from fairqr.cli.common import run
from fairqr.cli.serve import offered_models, with_corpora

if TYPE_CHECKING:
    from fairqr.graph.service.configuration import ServiceSettings


def mcp(
    *, corpus: list[str] | None = None, model: str | None = None, base_url: str | None = None
) -> None:
    """Offer fair search as tools to an agent, over MCP on stdin and stdout.

    The sections [service], [service.caps] and [service.models] of the settings file also apply.

    Args:
        corpus: What the agent may search: a source, an index, a built-in corpus, or the path of a
            source file or a corpus. Repeatable; the first is the default. [default: everything that
            has a name]
        model: The language model that refines queries and writes answers.
        base_url: The URL of an OpenAI-compatible server.
    """
    if find_spec("fastmcp") is None:
        raise ConfigError("MCP needs fastmcp; install it with: pip install 'fairqr[mcp]'")
    from fairqr.graph.service.configuration import service_settings

    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    settings = service_settings(models=offered_models([model] if model else None, base_url))
    run(_converse(settings, corpus or [], model))


async def _converse(settings: ServiceSettings, corpora: list[str], model: str | None) -> None:
    """Serve the tools until stdin ends."""
    from fairqr.cli.progress import Progress
    from fairqr.cli.service_audits import ServiceAuditor
    from fairqr.graph.service.engine.engine import Engine
    from fairqr.graph.service.mcp.tools import make_server
    from fairqr.graph.service.runs.doing import Observer
    from fairqr.graph.service.runs.ephemeral import EphemeralRuns
    from fairqr.graph.service.runs.slots import Slots

    async with contextlib.AsyncExitStack() as stack:
        with Progress() as progress:
            if corpora:
                settings = await with_corpora(settings, corpora, progress.prepare)
            auditor = ServiceAuditor.if_installed()
            engine = Engine(settings, default_model=model, auditor=auditor)
            stack.push_async_callback(engine.close)
            await engine.start(progress.prepare)
        slots = Slots(settings.concurrency)
        runs = EphemeralRuns(settings, slots, Observer())
        stack.push_async_callback(runs.drain, 0)
        stack.callback(slots.close)
        server = make_server(engine, runs)
        # The MCP library closes the stdout that it is given.
        stack.enter_context(contextlib.redirect_stdout(os.fdopen(os.dup(1), "w")))
        await server.run_stdio_async(show_banner=False)
