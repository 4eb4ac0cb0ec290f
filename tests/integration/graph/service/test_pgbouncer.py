"""PostgreSQL behind PgBouncer: refused in a sentence before any run, never half of it lost."""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from psycopg.conninfo import conninfo_to_dict

from fairqr.base.errors import ConfigError
from fairqr.graph.service.store import Store
from fairqr.graph.service.store.connections import SCHEMA
from tests.patience import PATIENCE, until
from tests.ports import free_port
from tests.servers.postgres_server import PASSWORD, postgres_server, postgres_url
from tests.servers.unprivileged import as_nobody, new_folder

__all__ = ["postgres_server", "postgres_url"]

PGBOUNCER = shutil.which("pgbouncer") or "/usr/sbin/pgbouncer"
pytestmark = pytest.mark.skipif(not Path(PGBOUNCER).exists(), reason="install pgbouncer")


@contextlib.contextmanager
def pgbouncer(url: str, more: str = "", **settings: str) -> Iterator[str]:
    """Run PgBouncer before the database of a URL; yields the URL that goes through it."""
    port = free_port()
    at = conninfo_to_dict(url)
    with new_folder("pgbouncer") as folder:
        users = folder / "users.txt"
        users.write_text(f'"{at["user"]}" "{PASSWORD}"\n')
        lines = {
            "listen_addr": "127.0.0.1",
            "listen_port": str(port),
            "auth_type": "plain",
            "auth_file": str(users),
            "unix_socket_dir": "",
            **settings,
        }
        written = folder / "pgbouncer.ini"
        server = f"host=127.0.0.1 port={at['port']} dbname={at['dbname']} {more}"
        options = "\n".join(f"{name} = {value}" for name, value in lines.items())
        written.write_text(f"[databases]\n{at['dbname']} = {server}\n[pgbouncer]\n{options}\n")
        for path in (folder, users, written):
            path.chmod(0o755)
        command = [*as_nobody(), PGBOUNCER, "-q", str(written)]
        child = subprocess.Popen(command, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)

        def listens() -> bool:
            assert child.poll() is None
            with socket.socket() as probe:
                return probe.connect_ex(("127.0.0.1", port)) == 0

        try:
            until(listens)
            yield url.replace(f":{at['port']}/", f":{port}/")
        finally:
            child.terminate()
            child.wait(PATIENCE)


@pytest.mark.parametrize("mode", ["session", "transaction", "statement"])
@pytest.mark.parametrize("ignored", ["", "options"])
async def test_a_pooler_is_refused_in_a_sentence(
    postgres_url: str, mode: str, ignored: str
) -> None:
    settings = {"pool_mode": mode, "ignore_startup_parameters": ignored}
    with pgbouncer(postgres_url, **settings) as url, pytest.raises(ConfigError) as refused:
        async with Store.opened(url):
            pass
    assert "is behind a pooler, such as PgBouncer" in str(refused.value)
    assert "name PostgreSQL itself" in str(refused.value)
    assert PASSWORD not in str(refused.value)


async def test_a_session_for_each_transaction_is_noticed_where_settings_are_kept(
    postgres_url: str,
) -> None:
    """As by newer poolers, which pass settings on: what tells is another session's number."""
    settings = {"pool_mode": "transaction", "ignore_startup_parameters": "options"}
    kept = f"connect_query='SET search_path = {SCHEMA}'"
    with (
        pgbouncer(postgres_url, kept, **settings) as url,
        pytest.raises(ConfigError, match="is behind a pooler"),
    ):
        async with Store.opened(url):
            pass


async def test_a_pooler_that_keeps_sessions_and_settings_is_as_good_as_none(
    postgres_url: str,
) -> None:
    settings = {"pool_mode": "session", "ignore_startup_parameters": "options"}
    kept = f"connect_query='SET search_path = {SCHEMA}'"
    with pgbouncer(postgres_url, kept, server_reset_query="", **settings) as url:
        async with Store.opened(url) as store:
            assert await store.unfinished() == []
