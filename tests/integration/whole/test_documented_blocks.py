"""Every command of the tutorial, of the how-to pages and of the README runs as it stands there.

The blocks of a page run from its top to its end in one new folder. A block with a title is the file
of that name, ``bash`` is run by a shell, and ``python`` by Python as in a notebook. ``sh`` is for
what needs Docker, other machines or a paid model; such commands are only parsed, by another test.
In place of OpenAI a server on this machine answers; Elasticsearch, the service and the embedded
models are real.
"""

from __future__ import annotations

import ast
import asyncio
import contextlib
import inspect
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.patience import PATIENCE
from tests.servers.attached_people import people
from tests.servers.local_model import ENCODER, linked, share_vectors
from tests.servers.model_server import Main, ModelServer
from tests.servers.page_service import served
from tests.servers.service_client import answers_all

pytestmark = pytest.mark.timeout(900)

ROOT = Path(__file__).parents[3]
ALL = [ROOT / "README.md", *sorted((ROOT / "docs").glob("[ht]*/*.md"))]
BLOCK = re.compile(r'^```(\w+)(?: title="([^"]+)")?\n(.*?)^```$', re.DOTALL | re.MULTILINE)
ELASTICSEARCH = "http://localhost:9200"
SERVICE = "http://127.0.0.1:8080"
# Ray is started by processes of its own.
COMMAND = re.compile(r"fairqr (?!.*ray://)[^|<>$`;&*~]*")
# test_parts_page.py runs them, each with a check of what it gives.
OTHERS_RUN = "use-from-python.md"
# What pages install is installed, and extras have names.
SHELL = r"""
set -euo pipefail
pip() {
    [[ "$*" =~ ^install\ \'?(fairqr|\.)(\[[a-z,]+\])?\'?$ ]] && return
    echo "pip $*" >&2
    return 1
}
"""


def blocks(page: Path) -> list[tuple[str, str, str]]:
    """Return language, title and text of what runs, or is a file."""
    found = BLOCK.findall(page.read_text(encoding="utf-8"))
    return [it for it in found if it[1] or runs(page, it[0], it[2])]


def runs(page: Path, language: str, text: str) -> bool:
    in_python = language == "python" and ">>>" not in text and page.name != OTHERS_RUN
    return language == "bash" or in_python


PAGES = [page for page in ALL if any(runs(page, it[0], it[2]) for it in blocks(page))]


def needs_elasticsearch(page: Path) -> bool:
    run = ("bash", "python")
    return any(ELASTICSEARCH in text for language, _, text in blocks(page) if language in run)


def follow(page: Path, folder: Path, quick: Main, replaced: dict[str, str]) -> None:
    """Do what a page says, in a folder."""
    names: dict[str, Any] = {"__name__": page.stem}
    with contextlib.ExitStack() as ending, asyncio.Runner() as loop:
        for language, title, text in blocks(page):
            for old, new in replaced.items():
                text = text.replace(old, new)
            if title:
                (folder / title).write_text(text, encoding="utf-8")
                if title == "fairqr.toml":
                    os.environ["FAIRQR_CONFIG"] = str(folder / title)
            elif language == "python":
                code = compile(text, page, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
                running = eval(code, names)
                if inspect.isawaitable(running):
                    loop.run(running)
            else:
                command, _, serving = text.partition("fairqr serve")
                shell(command, folder, quick)
                if serving or text.startswith("fairqr serve"):
                    arguments = serving.split()
                    replaced[SERVICE] = ending.enter_context(served({**os.environ}, *arguments))


def shell(text: str, folder: Path, quick: Main) -> None:
    """Run a block line by line: commands alone in this process, which saves a start of each.

    Lines share the folder, but no variables. A block runs as a whole where a line is only a part of
    a command, or where something runs in the background.
    """
    lines = [*filter(None, text.replace("\\\n", " ").splitlines())]
    are_whole = all(bash(line, "-n").returncode == 0 for line in lines)
    for part in lines if are_whole and " &" not in text else [text]:
        if COMMAND.fullmatch(part):
            run = quick(*shlex.split(part, comments=True)[1:])
            assert run.code == 0, f"{part}\n{run.stdout}\n{run.stderr}"
        else:
            done = bash(SHELL + part, cwd=folder)
            assert done.returncode == 0, f"{part}\n{done.stdout}\n{done.stderr}"
            assert "Traceback" not in done.stderr, done.stderr


def bash(text: str, *options: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", *options, "-c", text],
        cwd=cwd,
        env={**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )


@pytest.fixture
def folder(
    page: Path,
    clean_environment: Path,
    model_server: ModelServer,
    model_cache: Path,
    pulled_minilm: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Path:
    """A folder to work in, with the embedded language model pulled.

    MiniLM is for pages that need it; without it nothing is encoded, which takes a while.
    """
    commands = "".join(text for language, _, text in blocks(page) if language == "bash")
    if re.search("models pull|minilm|hybrid", commands):
        linked(ENCODER, pulled_minilm, model_cache)
        share_vectors(model_cache)
    model_server.does(answers_all)
    monkeypatch.setenv("OPENAI_BASE_URL", model_server.base_url)
    monkeypatch.setenv("HOME", str(clean_environment))
    work = clean_environment / "work"
    work.mkdir()
    (work / "docs").symlink_to(ROOT / "docs")  # as it is beside the README
    monkeypatch.chdir(work)
    return work


def alone(page: Path) -> Any:
    """Let each page go to any worker."""
    return pytest.param(page, id=page.stem, marks=pytest.mark.xdist_group(page.stem))


@pytest.mark.promise("command")
@pytest.mark.parametrize("page", [alone(it) for it in PAGES if not needs_elasticsearch(it)])
def test_a_page_does_what_it_says(page: Path, folder: Path, quick: Main) -> None:
    """The blocks of commands in the docs run as they stand there."""
    follow(page, folder, quick, {})


@pytest.mark.promise("engines")
@pytest.mark.xdist_group("people")  # they have an index of that name
@pytest.mark.parametrize(
    "page", [it for it in PAGES if needs_elasticsearch(it)], ids=lambda page: page.stem
)
def test_a_page_does_what_it_says_on_elasticsearch(
    page: Path, folder: Path, quick: Main, elasticsearch_url: str
) -> None:
    """A drafted source for your own Elasticsearch index is checked and searched as the docs say."""
    with people(elasticsearch_url, "hr-people-v3"):
        follow(page, folder, quick, {ELASTICSEARCH: elasticsearch_url})
