"""The page and the API below a path of nginx, which cuts the path off or passes it on."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import expect

from tests.patience import PATIENCE
from tests.ports import free_port
from tests.servers.chromium import Pages, ask, browser, pages
from tests.servers.nginx import around, running_nginx, with_nginx
from tests.servers.service_client import Served, service_of_a_module

__all__ = ["browser", "pages"]

pytestmark = with_nginx

SERVER = """
    server {{
        listen 127.0.0.1:{port};
        location /intranet/fair/ {{
            proxy_pass {service}{ending};
            proxy_set_header Host $http_host;
            proxy_buffering off;
            proxy_http_version 1.1;
            proxy_set_header Connection "";
        }}
        location = /intranet/fair {{
            proxy_pass {service};
            proxy_set_header Host $http_host;
        }}
    }}
"""

served = service_of_a_module(settings='root_path = "/intranet/fair"\ntraffic.rate = ""')


@contextlib.contextmanager
def nginx(folder: Path, service: str, ending: str) -> Iterator[str]:
    """Serve the service below a path; with the ending ``/``, nginx cuts that off."""
    port = free_port()
    server = SERVER.format(port=port, service=service.rstrip("/"), ending=ending)
    with running_nginx(around(server, folder), folder):
        yield f"http://127.0.0.1:{port}/intranet/fair"


@pytest.fixture(params=["/", ""], ids=["cut", "kept"])
def below(request: pytest.FixtureRequest, served: Served, tmp_path: Path) -> Iterator[str]:
    with nginx(tmp_path, served.url, request.param) as address:
        yield address


def test_a_search_on_the_page_goes_there(below: str, pages: Pages) -> None:
    page, watched = pages()
    page.goto(below)  # without its slash
    ask(page, "physicist", "baseline")
    expect(page.get_by_role("heading", name="Before and after")).to_be_visible()
    assert watched.failures == []
    assert all(url.startswith(f"{below}/") for url in watched.requests if url != below)


def test_what_the_api_names_is_below_the_path(below: str) -> None:
    asked = {"query": "physicist", "attributes": ["gender"], "model": "feedback"}
    with httpx.Client(trust_env=False, timeout=PATIENCE) as client:
        found = client.post(f"{below}/v1/search", json=asked)
        assert found.status_code == 200, found.text
        started = client.post(f"{below}/v1/runs", json={"kind": "search", "request": asked})
        run = client.get(str(started.url.join(started.headers["location"])))
        assert run.json()["id"] == started.json()["id"]
        (server,) = client.get(f"{below}/openapi.json").json()["servers"]
        assert server["url"] == "/intranet/fair"
        assert client.get(f"{below}/healthz").json() == {"status": "ok"}


def test_the_service_itself_still_answers_without_the_path(served: Served) -> None:
    assert served.client.get("/healthz").status_code == 200
    assert served.client.get("/intranet/fair/healthz").status_code == 200
    assert served.client.get("/intranet/fairness").status_code == 404


def test_all_that_is_answered_there_has_the_headers_of_the_page(served: Served) -> None:
    """What leads to the page, too."""
    paths = ("/intranet/fair", "/intranet/fair/", "/intranet/fair/healthz", "/intranet/fair/no")
    answers = [served.client.get(path) for path in paths]
    assert [it.status_code for it in answers] == [307, 200, 200, 404]
    names = {name for name in answers[1].headers if name.startswith(("x-", "c")) and "-" in name}
    assert {"content-security-policy", "x-frame-options", "x-content-type-options"} <= names
    for each in answers:
        assert names - {"content-type"} <= {*each.headers}, each.url
