"""The command ``fairqr serve``."""

from __future__ import annotations

import contextlib
import gc
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from fairqr.base.errors import ConfigError, InputError
from fairqr.cli.common import run
from fairqr.cli.config import unknown_settings
from fairqr.cli.options import Fields
from fairqr.cli.output import warn
from fairqr.cli.progress import Progress
from fairqr.graph.service.configuration import ServiceSettings

LIBRARIES = ("fastapi", "limits", "procrastinate", "prometheus_client", "sqlalchemy", "uvicorn")
"""The libraries of the extra ``service``."""

YOUNG_OBJECTS = 10_000
"""A search has some thousands at once, and leaves hardly any."""


def serve(
    *,
    changes: Annotated[
        Mapping[str, Any],
        Fields(
            *("host", "port", "database", "require_keys", "concurrency", "traces"),
            model=ServiceSettings,
        ),
    ],
    corpus: list[str] | None = None,
    model: list[str] | None = None,
    base_url: str | None = None,
) -> None:
    """Serve searches, answers, probes and audits over HTTP, with a page to run and watch them.

    Set everything else in the section [service] of the settings file, or in variables
    FAIRQR_SERVICE_…; 'fairqr config show' lists them.

    Args:
        changes: Where it listens, and what it keeps.
        corpus: What clients may search: a source, an index, a built-in corpus, or the path of a
            source file or a corpus. Repeatable; the first is the default. [default: everything that
            has a name]
        model: A model that clients may ask, besides those of the settings file. Repeatable; the
            first is the default.
        base_url: The URL of an OpenAI-compatible server.
    """
    require_service()
    from fairqr.graph.service.configuration import service_settings

    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    settings = service_settings(models=offered_models(model, base_url), **changes)
    for warning in unknown_settings():
        warn(warning)
    run(_serve(settings, corpus or [], model[0] if model else None))


async def _serve(settings: ServiceSettings, corpora: list[str], model: str | None) -> None:
    from fairqr.cli.service_audits import ServiceAuditor
    from fairqr.graph.service.http.access import needs_keys
    from fairqr.graph.service.http.serving import Server, bound, url_of
    from fairqr.graph.service.http.starting import running

    async with contextlib.AsyncExitStack() as stack:
        listener = stack.enter_context(bound(settings))
        url = url_of(listener)
        with Progress() as progress:
            if corpora:
                settings = await with_corpora(settings, corpora, progress.prepare)
            app, drain = await stack.enter_async_context(
                running(settings, model, progress.prepare, ServiceAuditor.if_installed())
            )

        def started() -> None:
            keys = "keys are needed" if needs_keys(settings) else "no keys are needed here"
            typer.echo(f"fairqr listens on {url}")
            typer.echo(f"  the page: {url}/   the API: {url}/openapi.json   ({keys})")

        # What is loaded by now stays, so no collection of garbage has to look at it and hold all
        # requests up; and a request may make many objects before there is one.
        gc.collect()
        gc.freeze()
        gc.set_threshold(YOUNG_OBJECTS)
        await Server(app, settings, drain).run_on(listener, started)


def offered_models(names: list[str] | None, base_url: str | None) -> dict[str, Any] | None:
    """Return the models to add to those of the settings file.

    Raises:
        InputError: There is a server, and no model.
    """
    if base_url is not None and not names:
        raise InputError("--base-url belongs to a model; name the model with --model.")
    if not names:
        return None
    return {**{name: {"base_url": base_url} for name in names}, "feedback": {}}


async def with_corpora(
    settings: ServiceSettings, corpora: list[str], preparing: Any
) -> ServiceSettings:
    """Return settings that offer these corpora; a corpus at a path is indexed first."""
    import asyncio

    from fairqr.retrieval.sources.catalog import Catalog
    from fairqr.retrieval.sources.source import is_source_file, load_source

    names, files = [], [*settings.sources]
    for corpus in corpora:
        if is_source_file(corpus):
            names.append(load_source(Path(corpus)).name)
            files.append(Path(corpus))
        elif "/" in corpus or await asyncio.to_thread(Path(corpus).exists):
            engine = await Catalog().resolve(corpus, progress=preparing)
            await engine.aclose()
            names.append(engine.name)
        else:
            names.append(corpus)
    return settings.model_copy(update={"corpora": tuple(names), "sources": tuple(files)})


def require_service() -> None:
    """Check that the extra ``service`` is installed.

    Raises:
        ConfigError: It is not.
    """
    from importlib.util import find_spec

    for library in LIBRARIES:
        if find_spec(library) is None:
            raise ConfigError(
                f"The service needs {library}; install it with: pip install 'fairqr[service]'"
            )
