"""The files of an audit are packed up to a limit."""

from __future__ import annotations

import asyncio
import threading
import zipfile
from pathlib import Path

import pytest

from fairqr.base.errors import LimitError
from fairqr.graph.service.http.audits import PIECE, zipped
from tests.patience import PATIENCE


@pytest.fixture
def audit_folder(tmp_path: Path) -> Path:
    """The folder of an audit whose files have 1,000 bytes; its lock is no file of the audit."""
    folder = tmp_path / "abc"
    (folder / "figures").mkdir(parents=True)
    (folder / "report.html").write_bytes(b"x" * 600)
    (folder / "figures" / "one.svg").write_bytes(b"x" * 400)
    (folder / ".lock").write_bytes(b"x")
    return folder


async def test_a_bundle_has_all_files_up_to_the_limit(audit_folder: Path) -> None:
    with await zipped(audit_folder, 1000) as file:
        names = zipfile.ZipFile(file).namelist()
    assert sorted(names) == ["audit-abc/figures/one.svg", "audit-abc/report.html"]


async def test_a_bundle_above_the_limit_is_refused(audit_folder: Path) -> None:
    sentence = r"have 1,000 bytes, .* at most 999 \(bundle_bytes\)"
    with pytest.raises(LimitError, match=sentence) as refused:
        await zipped(audit_folder, 999)
    assert (refused.value.limit, refused.value.most) == ("bundle_bytes", 999)


async def test_a_bundle_that_is_given_up_ends_with_its_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So its key, which then may have the next one, never has two threads at work."""
    (tmp_path / "large").write_bytes(b"x" * 5 * PIECE)
    is_writing = asyncio.Event()
    may_go_on = threading.Event()
    loop = asyncio.get_running_loop()
    written = []
    write = zipfile._ZipWriteFile.write  # type: ignore[attr-defined]

    def write_slowly(self: object, data: bytes) -> int:
        loop.call_soon_threadsafe(is_writing.set)
        assert may_go_on.wait(PATIENCE)
        written.append(len(data))
        return int(write(self, data))

    monkeypatch.setattr("zipfile._ZipWriteFile.write", write_slowly)
    zipping = asyncio.create_task(zipped(tmp_path, 10 * PIECE))
    await is_writing.wait()
    zipping.cancel()
    _, going_on = await asyncio.wait({zipping}, timeout=0.1)

    assert going_on, "its thread is still at work"

    may_go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await zipping
    assert written == [PIECE]
