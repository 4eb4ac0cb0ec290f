"""The command ``fairqr work``."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Mapping
from typing import Annotated, Any

import typer

from fairqr.base.errors import ConfigError
from fairqr.cli.common import run
from fairqr.cli.options import Fields
from fairqr.cli.serve import require_service
from fairqr.graph.service.configuration import ServiceSettings


def work(
    *,
    changes: Annotated[
        Mapping[str, Any],
        Fields("database", "concurrency", "traces", model=ServiceSettings),
    ],
) -> None:
    """Do the durable runs that 'fairqr serve' accepts, as one of any number of processes.

    They share a PostgreSQL database. All else is set as for 'fairqr serve'.

    Args:
        changes: Where the runs are, and how many are done at once.
    """
    require_service()
    from fairqr.graph.service.configuration import service_settings

    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    settings = service_settings(**changes)
    if not settings.database.startswith("postgres"):
        raise ConfigError(
            "Runs in a SQLite file are done by 'fairqr serve' itself; name a PostgreSQL database "
            "with --database."
        )
    run(_work(settings.model_copy(update={"work": True})))


async def _work(settings: ServiceSettings) -> None:
    from fairqr.cli.service_audits import ServiceAuditor
    from fairqr.graph.service.http.starting import working
    from fairqr.graph.service.runs.doing import Observer

    told = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, told.set)
    auditor = ServiceAuditor.if_installed()
    async with working(settings, Observer(), auditor=auditor) as (_, _, runs):
        typer.echo("fairqr does runs")
        await told.wait()
        await runs.drain(settings.grace)
