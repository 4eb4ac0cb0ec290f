"""Templates of searches: the cluster says which searches they stand for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from starlette.requests import Request

from fairqr.graph.service.proxy.cluster import Cluster, addressed, parameters_of
from fairqr.graph.service.proxy.requests import UnavailableError, read_once
from fairqr.graph.service.proxy.searches import names_of

PARAMETERS = names_of("of_templates")

OPTIONS = ("explain", "profile")
"""What stands beside a template and counts, whatever is in it."""


async def rendered(
    cluster: Cluster, request: Request, template: Mapping[str, Any]
) -> tuple[Request, list[Any]]:
    """Return the search that a template stands for: a request for it, and the lines of its body.

    Args:
        cluster: The cluster.
        request: The request with the template.
        template: Its body.

    Raises:
        RefusedError: The cluster has too much to do, is broken, or cannot be reached.
        UnavailableError: The cluster cannot say.
    """
    if dict(parameters_of(request)).keys() - PARAMETERS:
        raise UnavailableError("template")
    options = {name: template.get(name, False) for name in OPTIONS}
    _, reply = await cluster.windows(addressed(request, "/_render/template"), [template])
    try:
        search = {**read_once(reply)["template_output"], **options}
    except (ValueError, LookupError, TypeError):
        raise UnavailableError("template") from None
    target = request.scope["raw_path"].decode("latin-1").rstrip("/").removesuffix("/template")
    return addressed(request, target, request.scope["query_string"]), [search]
