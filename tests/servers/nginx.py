"""Runs nginx for tests of what stands behind it."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.patience import PATIENCE, until

NGINX = shutil.which("nginx") or "/usr/sbin/nginx"

with_nginx = pytest.mark.skipif(not Path(NGINX).exists(), reason="install nginx-light")

_AROUND = """
worker_processes 1;
pid {folder}/nginx.pid;
events {{}}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxied;
{servers}
}}
"""


def around(servers: str, folder: Path) -> str:
    """Return whole settings for servers; other files of nginx are in a folder."""
    return _AROUND.format(folder=folder, servers=servers)


@contextlib.contextmanager
def running_nginx(settings: str, folder: Path) -> Iterator[None]:
    """Run nginx with these settings from a folder."""
    file = folder / "nginx.conf"
    file.write_text(settings)
    command = [NGINX, "-c", str(file), "-p", str(folder), "-e", "stderr"]
    assert subprocess.run([*command, "-t"], check=False, capture_output=True).returncode == 0
    child = subprocess.Popen([*command, "-g", "daemon off;"], stderr=subprocess.DEVNULL)
    try:
        until(psutil.Process(child.pid).net_connections)
        yield
    finally:
        child.terminate()
        child.wait(PATIENCE)
