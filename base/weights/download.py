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

Progress = Callable[[int, int], None]
"""Called with the number of bytes so far, and with the total (0 if unknown)."""

CHUNK = 1 << 16
"""How many bytes are read at once."""

TIMEOUT = 60.0  # seconds without a byte
ATTEMPTS = 5  # how often we try one download in all


class BrokenError(Exception):
    """The connection broke or the server is busy: the rest may come on the next attempt."""


class RefusedError(Exception):
    """Our client got no answer, or the server asked for credentials that our client lacks."""


class AbsentError(Exception):
    """The server answers, but does not have the file."""


class _TooLongError(BrokenError):
    """Our partial file is longer than the server's file, so it belongs to another one."""


def is_whole(file: Path, sha256: str) -> bool:
    """Return whether the file exists with this hash."""
    return file.is_file() and sha256_of(file) == sha256


def bring_whole(part: Path, sha256: str, bring: Callable[[], None]) -> bool:
    """Fetch a file, starting again if the partial file belonged to another one.

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
    """Fetch the missing part of a file; its existing content is taken for the beginning.

    Args:
        url: The address of the file.
        file: Where it goes.
        progress: Called with the number of bytes so far.
        timeout: How many seconds the server may send nothing.

    Raises:
        BrokenError: The connection kept breaking; ``file`` contains what came.
        RefusedError: The server refuses us or cannot be reached; another client may succeed.
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
    """Return the size of a file in bytes, or 0 if it does not exist."""
    return file.stat().st_size if file.exists() else 0


def _attempt(url: str, file: Path, progress: Progress, timeout: float) -> None:
    """Ask for the missing part of the file; start again if the server only sends whole files."""
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
        raise BrokenError(f"only {done} of {total} bytes came")


def _ask(url: str, have: int, timeout: float) -> http.client.HTTPResponse:
    request = urllib.request.Request(url, headers={"Accept-Encoding": "identity"})  # noqa: S310
    if have:
        request.add_header("Range", f"bytes={have}-")
    opener = urllib.request.build_opener(urllib.request.HTTPSHandler(context=_tls()))
    try:
        answer: http.client.HTTPResponse = opener.open(request, timeout=timeout)
    except urllib.error.HTTPError as error:
        if error.code == 416 and have:
            raise _TooLongError("the partial file is longer than the file") from error
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
    """Return whether the answer starts where our part ends."""
    given = answer.headers.get("Content-Range", "")
    return answer.status == 206 and given.startswith(f"bytes {have}-")


def _tls() -> ssl.SSLContext:
    """Return a context that trusts the system's certificates, SSL_CERT_FILE, and those of pip.

    Trusting more than pip does no harm here: the SHA-256 decides which files are used.
    """
    context = ssl.create_default_context()
    for name in ("PIP_CERT", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"):
        place = os.environ.get(name)
        if place:
            with suppress(OSError):  # pip itself complains about a missing bundle
                if Path(place).is_dir():
                    context.load_verify_locations(capath=place)
                else:
                    context.load_verify_locations(cafile=place)
    with suppress(ImportError, OSError):
        import certifi

        context.load_verify_locations(cafile=certifi.where())
    return context
