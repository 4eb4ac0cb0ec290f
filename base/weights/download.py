"""Downloading a file so that it resumes after a broken connection or a killed process."""

from __future__ import annotations

import http.client
import os
import ssl
import urllib.error
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import tenacity

from fairqr.base.files import sha256_of

__all__ = [
    "CHUNK",
    "AbsentError",
    "BrokenError",
    "Progress",
    "RefusedError",
    "bring_whole",
    "download",
    "is_whole",
    "size_of",
]

Progress = Callable[[int, int], None]
"""Called with the number of bytes that are here, and of all bytes (0 if nobody says)."""

CHUNK = 1 << 16
"""How many bytes are read at once."""

TIMEOUT = 60.0  # seconds without a byte
ATTEMPTS = 5  # a connection that broke is resumed at once, so often at the most


class BrokenError(Exception):
    """The connection broke or the server is busy: the rest may come on the next attempt."""


class RefusedError(Exception):
    """Our own client got no answer, or was asked for credentials that it does not have."""


class AbsentError(Exception):
    """The server answers, and does not have the file."""


class _TooLongError(BrokenError):
    """What lies here has no continuation, so it is another file's."""


def is_whole(file: Path, sha256: str) -> bool:
    """Return whether the file is there with this hash."""
    return file.is_file() and sha256_of(file) == sha256


def bring_whole(part: Path, sha256: str, bring: Callable[[], None]) -> bool:
    """Bring a file, starting again if what lay there was the start of another one.

    Args:
        part: Where the file goes. It is removed if it ends up with another hash.
        sha256: The hash that the whole file must have.
        bring: Fetches what is missing.

    Returns:
        Whether the file has this hash.
    """
    resumed = part.exists()
    bring()
    if resumed and not is_whole(part, sha256):
        part.unlink()
        bring()
    if is_whole(part, sha256):
        return True
    part.unlink()
    return False


def download(url: str, file: Path, progress: Progress, timeout: float = TIMEOUT) -> None:
    """Fetch what is missing of a file; what lies there already is taken for its beginning.

    Args:
        url: Of the file.
        file: Where it goes.
        progress: Called with the bytes that are here.
        timeout: How many seconds the server may send nothing.

    Raises:
        BrokenError: The connection broke again and again; ``file`` holds what came.
        RefusedError: Another client may be let in, or reach the server.
        AbsentError: The server does not have the file.
    """
    attempts = tenacity.Retrying(
        stop=tenacity.stop_after_attempt(ATTEMPTS),
        wait=tenacity.wait_exponential(multiplier=0.25, max=4),
        retry=tenacity.retry_if_exception_type(BrokenError),
        reraise=True,
    )
    attempts(_attempt, url, file, progress, timeout)


def size_of(file: Path) -> int:
    """Return the size of a file in bytes; 0 if there is none."""
    return file.stat().st_size if file.exists() else 0


def _attempt(url: str, file: Path, progress: Progress, timeout: float) -> None:
    """Ask for what is missing of the file; start again if the server sends only whole files."""
    have = size_of(file)
    try:
        answer = _ask(url, have, timeout)
    except _TooLongError:
        file.unlink()
        raise
    with answer:
        done = have if _continues(answer, have) else 0
        length = answer.headers.get("Content-Length")
        total = done + int(length) if length else 0
        with file.open("ab" if done else "wb") as writer:
            progress(done, total)
            while block := _read(answer):
                writer.write(block)
                done += len(block)
                progress(done, total)
    if done < total:
        raise BrokenError(f"{done} of {total} bytes came")


def _ask(url: str, have: int, timeout: float) -> http.client.HTTPResponse:
    request = urllib.request.Request(url, headers={"Accept-Encoding": "identity"})  # noqa: S310
    if have:
        request.add_header("Range", f"bytes={have}-")
    opener = urllib.request.build_opener(urllib.request.HTTPSHandler(context=_tls()))
    try:
        answer: http.client.HTTPResponse = opener.open(request, timeout=timeout)
    except urllib.error.HTTPError as error:
        if error.code == 416 and have:
            raise _TooLongError("what lay here was longer than the file") from error
        if error.code in (401, 403, 407):
            raise RefusedError(f"the server answers {error.code}") from error
        if error.code in (408, 429) or error.code >= 500:
            raise BrokenError(f"the server answers {error.code}") from error
        raise AbsentError(f"the server answers {error.code}") from error
    except urllib.error.URLError as error:
        raise RefusedError(error.reason) from error
    except (http.client.HTTPException, OSError) as error:
        raise BrokenError(str(error) or type(error).__name__) from error
    return answer


def _read(answer: http.client.HTTPResponse) -> bytes:
    try:
        return answer.read(CHUNK)
    except (http.client.HTTPException, OSError) as error:
        raise BrokenError(str(error) or type(error).__name__) from error


def _continues(answer: http.client.HTTPResponse, have: int) -> bool:
    """Return whether the answer begins where what we have ends."""
    given = answer.headers.get("Content-Range", "")
    return answer.status == 206 and given.startswith(f"bytes {have}-")


def _tls() -> ssl.SSLContext:
    """Trust what the system trusts (and SSL_CERT_FILE), and what pip is told to trust.

    Trusting more than pip does no harm here: the SHA-256 decides what is used.
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
