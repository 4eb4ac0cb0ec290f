"""Which key goes where: never to an address that it was not given for."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest

from fairqr.base.errors import ConfigError
from fairqr.retrieval.sources.credentials import Credentials, credentials_for, default_url

NAMED = """[credentials.production]
urls = ["https://search.example.org:9243", "people:aG9zdCRpZA=="]
api_key = " s3cret\\n"
ca_certs = "ca.pem"
"""
MINE = '[elasticsearch]\nurl = "https://mine:9200/"\nusername = "me"\npassword = "s3cret"\n'
INSIDE = "https://el%40stic:s3cret%2F%3A@host/es/"
KEY = {"API_KEY": "key"}


@pytest.fixture
def file(
    settings_file: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Path:
    """The settings file and the variables of Elasticsearch, as a test asks."""
    content, variables = request.param
    settings_file.write_text(content)
    for name, value in variables.items():
        monkeypatch.setenv(f"FAIRQR_ELASTICSEARCH_{name}", value)
    return settings_file


def basic(text: str) -> str:
    return f"Basic {base64.b64encode(text.encode()).decode()}"


@pytest.mark.parametrize(
    ("file", "name", "url", "sent"),
    [
        ((NAMED, {}), "production", "https://SEARCH.example.org:9243/es", "ApiKey s3cret"),
        ((NAMED, {}), "production", "people:aG9zdCRpZA==", "ApiKey s3cret"),
        # Without a name, the settings of Elasticsearch serve the address in them alone; but for
        # variables, which belong together, and may name another server.
        ((MINE, {}), None, "https://mine:9200/path", basic("me:s3cret")),
        ((MINE, KEY), None, "https://mine:9200", "ApiKey key"),
        *(
            ((MINE, KEY), None, url, None)
            for url in ("https://other:9200", "http://mine:9200", "https://mine")
        ),
        ((MINE, {"URL": "https://other:9200"}), None, "https://other:9200", None),
        # Credentials in the address win, and are decoded.
        (("", {"URL": INSIDE} | KEY), None, "https://host", basic("el@stic:s3cret/:")),
    ],
    indirect=["file"],
)
def test_a_key_goes_to_its_own_addresses(
    file: Path, name: str | None, url: str, sent: str | None
) -> None:
    found = credentials_for(name, url)
    assert found.request_headers() == ({"Authorization": sent} if sent else {})
    assert found.ca_certs == (file.parent / "ca.pem" if name else None)
    assert "s3cret" not in f"{default_url()} {found!r} {found.model_dump_json()}"


@pytest.mark.promise("engines")
@pytest.mark.parametrize(
    ("file", "name", "url", "told"),
    [
        *(
            ((NAMED, {}), "production", url, "'production' may not be sent to")
            for url in (
                "http://search.example.org:9243",
                "https://search.example.org",
                "https://search.example.org.evil.net:9243",
                "https://search.example.org:9243@evil.net",
                "people:aG9zdCRpZA",
            )
        ),
        ((NAMED, {}), "staging", "https://a", r"has no \[credentials.staging\]; add it"),
        *(
            ((f'[credentials.one]\nurls = ["https://a"]\n{entry}', {}), "one", "https://a", told)
            for entry, told in (
                ('key = "s3cret"', r"\[credentials.one\].* wrong at key: there is no such"),
                ('username = "u"', "a username needs a password"),
                ('api_key = "s3cret"\nbearer = "s3cret"', "give one of api_key"),
                ('headers = {X = "s3cret\\nY: z"}', "'X' is not a one-line head"),
            )
        ),
        *(
            (("", {"URL": url}), None, "http://any", "FAIRQR_ELASTICSEARCH_URL")
            for url in ("ftp://u:s3cret@h", "http://", "s3cret")
        ),
    ],
    indirect=["file"],
)
def test_no_other_address_gets_anything_and_no_secret_is_shown(
    file: Path, name: str | None, url: str, told: str
) -> None:
    """Credentials go only to the addresses of their entry, and no secret is shown."""
    with pytest.raises(ConfigError, match=told) as caught:
        credentials_for(name, url)
    assert "s3cret" not in str(caught.value)


def test_a_token_and_headers_of_ones_own_are_sent() -> None:
    assert Credentials(bearer="t").request_headers() == {"Authorization": "Bearer t"}
    found = Credentials(username="u", password="s3cret", headers={"X-Key": "s3cret"})
    assert found.request_headers()["X-Key"] == "s3cret"
    assert "s3cret" not in f"{found!r} {found} {found.model_dump()} {found.model_dump_json()}"
