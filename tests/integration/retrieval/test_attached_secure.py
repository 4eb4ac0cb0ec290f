"""An Elasticsearch with security on: the least role is enough, and keys go where they may."""

from __future__ import annotations

import base64
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from fairqr.base.errors import IndexUnavailableError
from fairqr.retrieval.engines.elasticsearch.drafting import draft
from fairqr.retrieval.engines.engine import Query
from fairqr.retrieval.engines.opening import check_source
from tests.servers.attached_people import PEOPLE, Server, attached, described, state
from tests.servers.elasticsearch_server import SecureServer
from tests.unit.engines import hits_of

pytestmark = pytest.mark.elasticsearch

INDEX = "hr-people-v3"
READING = ["read", "view_index_metadata"]


@pytest.fixture(scope="module")
def admin(secure_elasticsearch: SecureServer) -> Iterator[Server]:
    """The server as its owner sees it, with the index of people."""
    secure = secure_elasticsearch
    auth = (secure.username, secure.password)
    admin = Server(secure.url, auth=auth, verify=ssl.create_default_context(cafile=secure.ca_certs))
    with admin.client, admin.index(INDEX, PEOPLE):
        yield admin


def key(admin: Server, privileges: list[str], names: str = "hr-*") -> str:
    roles = {"r": {"cluster": [], "indices": [{"names": [names], "privileges": privileges}]}}
    made = admin.ask("POST", "/_security/api_key", {"name": "k", "role_descriptors": roles})
    encoded: str = made["encoded"]
    return encoded


def write(settings_file: Path, secure: SecureServer, **parts: str) -> None:
    lines = [f'urls = ["{secure.url}"]', f'ca_certs = "{secure.ca_certs}"']
    lines += [f'{name} = "{value}"' for name, value in parts.items()]
    settings_file.write_text("[credentials.mine]\n" + "\n".join(lines) + "\n")


@pytest.mark.promise("engines")
@pytest.mark.filterwarnings("error:When using")  # of OpenSearch's client, for its own options
async def test_read_and_view_index_metadata_on_the_index_are_enough(
    admin: Server, secure_elasticsearch: SecureServer, settings_file: Path
) -> None:
    """`read` and `view_index_metadata` are enough to search, check and draft.

    Searching, counting, texts, shares, the check and the draft; the version is not visible.

    Which product it is can be seen all the same.
    """
    write(settings_file, secure_elasticsearch, api_key=key(admin, READING))
    before = state(admin, INDEX)
    source = described(secure_elasticsearch.url, INDEX, credentials="mine")
    async with attached(source) as engine:
        hits, counted = await engine.search([Query("opera", 50), Query("opera", 0)])
        assert counted.total
        assert len(await engine.documents(hits.ids)) == len(hits) == 50
        assert (await engine.corpus_shares())["gender"].sum() > 0
        assert len(await hits_of(engine, "opera", 9, only=hits.ids)) == 9
        assert (await engine.info()).server == "not told"
    report = await check_source(source)
    assert (report.version, report.documents) == (None, 200)
    assert "credentials: mine" in await draft(secure_elasticsearch.url, INDEX, "mine")
    assert state(admin, INDEX) == before


NOT_ALLOWED = "does not allow this; give the account the privileges 'read' and 'view_index_metada"
NOT_ACCEPTED = r"does not accept the credentials, .* \(status 401\)\.$"


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        *(({"privileges": one}, NOT_ALLOWED) for one in ("monitor", "read", "view_index_metadata")),
        ({"username": "elastic", "password": "Wr0ng!"}, NOT_ACCEPTED),
        ({"api_key": base64.b64encode(b"nobody:Wr0ng!").decode()}, NOT_ACCEPTED),
        ({"bearer": "Wr0ng!"}, NOT_ACCEPTED),
    ],
)
async def test_an_account_that_may_not_read_is_one_sentence(
    admin: Server,
    secure_elasticsearch: SecureServer,
    settings_file: Path,
    parts: dict[str, str],
    said: str,
) -> None:
    if "privileges" in parts:
        parts = {"api_key": key(admin, [parts["privileges"]])}
    write(settings_file, secure_elasticsearch, **parts)
    source = described(secure_elasticsearch.url, INDEX, credentials="mine")
    with pytest.raises(IndexUnavailableError, match=said) as caught:
        async with attached(source) as engine:
            await hits_of(engine, "opera", 5)
    assert not any(secret in str(caught.value) for secret in parts.values())
    assert caught.value.__cause__ is None


async def test_a_certificate_that_is_not_trusted(
    secure_elasticsearch: SecureServer, settings_file: Path, tmp_path: Path
) -> None:
    certificate = tmp_path / "other.crt"
    command = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=other"
    made = [*command.split(), "-keyout", tmp_path / "other.key", "-out", certificate]
    subprocess.run(made, check=True, capture_output=True)
    settings_file.write_text(
        f'[credentials.mine]\nurls = ["{secure_elasticsearch.url}"]\nca_certs = "other.crt"\n'
    )
    said = r"has a certificate that is not trusted; name the file .*, or renew the certificate\.$"
    for named in (None, "mine"):
        with pytest.raises(IndexUnavailableError, match=said):
            async with attached(described(secure_elasticsearch.url, INDEX, credentials=named)):
                pass
