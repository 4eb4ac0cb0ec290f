"""What is deployed fits the code: names of settings, paths, ports and versions."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import typer.main
import yaml

from fairqr.base.settings import SETTINGS, variable_of
from fairqr.cli.main import app
from fairqr.graph.service.configuration import ServiceSettings, service_variables
from fairqr.graph.service.proxy.settings import ProxySettings

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
NOT_OURS = {"FORWARDED_ALLOW_IPS", "OPENAI_API_KEY", "OTEL_EXPORTER_OTLP_ENDPOINT"}
NOT_OURS |= {"PATH", "PYTHONUNBUFFERED"}


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    composition = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    assert isinstance(composition, dict)
    return composition


PROCESSES = ("serve-1", "serve-2", "work")


def test_workers_are_set_up_by_variables_that_there_are(compose: dict[str, Any]) -> None:
    known = {variable_of(setting.name) for setting in SETTINGS}
    known |= {*service_variables()} | NOT_OURS
    for name in PROCESSES:
        assert set(compose["services"][name]["environment"]) <= known

    image = (DEPLOY / "Dockerfile").read_text()
    assert set(re.findall(r"\b([A-Z][A-Z_]+)=(?=\S)", image)) <= known

    # Those of the example are read by the composition.
    text = (DEPLOY / "compose.yaml").read_text()
    for line in (DEPLOY / "example.env").read_text().splitlines():
        if named := re.match(r"#?([A-Z_]+)=", line):
            assert f"${{{named[1]}:" in text, line


@pytest.mark.parametrize("name", ["POSTGRES_PASSWORD", "ELASTIC_PASSWORD"])
def test_no_password_stands_in_the_files(name: str) -> None:
    """Each has to be given, and the composition refuses to start without."""
    uses = re.findall(rf"\$\{{{name}(.*?)\}}", (DEPLOY / "compose.yaml").read_text())

    assert len(uses) == 2
    assert all(use.startswith(":?") for use in uses)
    assert f"{name}=\n" in (DEPLOY / "example.env").read_text()


def test_what_is_mounted_and_copied_is_there(compose: dict[str, Any]) -> None:
    volumes = set(compose["volumes"])
    for name, service in compose["services"].items():
        for volume in service.get("volumes", ()):
            source = volume.split(":")[0]
            assert source in volumes or (DEPLOY / source).exists(), (name, source)
        for other in service.get("depends_on", ()):
            assert "healthcheck" in compose["services"][other] or other in PROCESSES
        if name not in PROCESSES:
            assert re.fullmatch(r"[a-z./-]+:v?\d[\w.-]*", service["image"]), "name a version"
    build = compose["services"]["serve-1"]["build"]

    assert (DEPLOY / build["context"] / build["dockerfile"]).resolve() == DEPLOY / "Dockerfile"

    copied = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if "!" in line]
    assert all((ROOT / path).exists() for path in copied)

    layers = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    folders = {path.split("/")[0] for path in layers["package-dir"].values()}
    assert folders <= set(copied)


def test_a_proxy_stands_beside_an_elasticsearch(compose: dict[str, Any]) -> None:
    composition = yaml.safe_load((DEPLOY / "compose.proxy.yaml").read_text())
    proxy = composition["services"]["proxy"]
    engine = composition["services"]["elasticsearch"]
    port = ProxySettings.model_fields["port"].default

    assert proxy["ports"] == [f"127.0.0.1:{port}:{port}"]
    assert f"127.0.0.1:{port}'" in proxy["healthcheck"]["test"][-1]
    assert proxy["command"][0] in typer.main.get_command(app).commands  # type: ignore[attr-defined]

    most = ProxySettings.model_fields["memory"].default
    assert int(proxy["mem_limit"].removesuffix("g")) * 1024 > most
    assert {*proxy["depends_on"]} == {*composition["services"]} - {"proxy"}
    assert "healthcheck" in engine

    mounts = [mount.split(":")[0] for mount in [*proxy["volumes"], *engine["volumes"]]]
    assert {*mounts} == {*composition["volumes"], "./sources"}
    assert proxy["build"] == compose["x-process"]["build"]


def test_servers_serve_and_workers_work(compose: dict[str, Any]) -> None:
    """Apart, with more than one of each, which build their indexes in places of their own.

    Both see the files of audits.
    """
    services = compose["services"]
    first = {volume for volume in services["serve-1"]["volumes"] if "data" in volume}
    second = {volume for volume in services["serve-2"]["volumes"] if "data" in volume}

    assert first
    assert not first & second
    assert services["work"]["command"] == ["work"]
    assert services["work"]["deploy"]["replicas"] > 1

    for name in PROCESSES:
        works = services[name]["environment"].get("FAIRQR_SERVICE_WORK", "true")
        assert works == ("true" if name == "work" else "false")
        assert services[name]["environment"]["FAIRQR_SERVICE_AUDITS"] == "/audits"
        assert "audits:/audits" in services[name]["volumes"]


def test_times_and_ports_fit_each_other(compose: dict[str, Any]) -> None:
    settings = ServiceSettings()
    worker = compose["services"]["serve-1"]
    assert int(worker["stop_grace_period"].removesuffix("s")) > settings.grace

    balancer = (DEPLOY / "nginx.conf").read_text()
    waits = re.search(r"proxy_read_timeout (\d+)s", balancer)
    assert waits
    assert int(waits[1]) > settings.limits.seconds
    assert int(waits[1]) > 15  # the pause between two signs of life of a stream

    # Each stands there twice: for agents, and for all other requests.
    workers = [*dict.fromkeys(re.findall(r"server (\S+):(\d+) ", balancer))]
    assert [name for name, _ in workers] == [n for n in compose["services"] if "serve" in n]
    assert {port for _, port in workers} == {str(settings.port)}

    targets = yaml.safe_load((DEPLOY / "prometheus.yml").read_text())["scrape_configs"][0]
    assert targets["static_configs"][0]["targets"] == [f"{name}:{port}" for name, port in workers]
