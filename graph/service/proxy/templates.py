"""Templates of searches: the cluster says which searches they stand for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from starlette.requests import Request

from fairqr.graph.service.proxy.cluster import Cluster, addressed, parameters_of
from fairqr.graph.service.proxy.json_text import parse_strictly
from fairqr.graph.service.proxy.requests import UnavailableError
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
    parameters = dict(parameters_of(request))
    if parameters.keys() - PARAMETERS:
        raise UnavailableError("template")
    options = {name: template.get(name, False) for name in OPTIONS}

    to_render = addressed(request, "/_render/template")
    _, reply = await cluster.windows(to_render, [template])
    try:
        search = {**parse_strictly(reply)["template_output"], **options}
    except (ValueError, LookupError, TypeError):
        raise UnavailableError("template") from None

    path = request.scope["raw_path"].decode("latin-1")
    path_of_search = path.rstrip("/").removesuffix("/template")
    query = request.scope["query_string"]
    return addressed(request, path_of_search, query), [search]
