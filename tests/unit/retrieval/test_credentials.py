"""Which key goes where: never to an address that it was not given for."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest

from fairqr.base.errors import ConfigError
from fairqr.retrieval.sources.credentials import (
    Credentials,
    credentials_for,
    default_url,
    named_credentials,
)

ENTRY = """
[credentials.production]
urls = ["https://search.example.org:9243", "people:aG9zdCRpZA=="]
api_key = " s3cret\\n"
ca_certs = "ca.pem"
"""
MINE = '[elasticsearch]\nurl = "https://mine:9200/"\nusername = "me"\npassword = "s3cret"\n'


@pytest.fixture(autouse=True)
def file(settings_file: Path) -> Path:
    """It is empty until a test writes it, and no variable is set."""
    settings_file.write_text("")
    return settings_file


def of_elasticsearch(monkeypatch: pytest.MonkeyPatch, **variables: str) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(f"FAIRQR_ELASTICSEARCH_{name.upper()}", value)


class TestNamed:
    def test_an_entry_goes_to_its_own_addresses(self, file: Path) -> None:
        file.write_text(ENTRY)
        for url in ("https://SEARCH.example.org:9243/es", "people:aG9zdCRpZA=="):
            found = credentials_for("production", url)
            assert found.request_headers() == {"Authorization": "ApiKey s3cret"}
            assert found.ca_certs == file.parent / "ca.pem"
        with pytest.raises(ConfigError, match=r"has no \[credentials.staging\]; add it"):
            credentials_for("staging", "https://search.example.org:9243")

    @pytest.mark.parametrize(
        "url",
        [
            "http://search.example.org:9243",
            "https://search.example.org",
            "https://search.example.org.evil.net:9243",
            "https://search.example.org:9243@evil.net",
            "people:aG9zdCRpZA",
        ],
    )
    def test_no_other_address_gets_anything(self, url: str, file: Path) -> None:
        file.write_text(ENTRY)
        with pytest.raises(ConfigError, match="'production' may not be sent to") as caught:
            credentials_for("production", url)
        assert "s3cret" not in str(caught.value)

    @pytest.mark.parametrize(
        ("entry", "words"),
        [
            ('api_key = "s3cret"', "wrong at urls: Field required"),
            ('urls = ["https://a"]\nkey = "s3cret"', "wrong at key: Extra inputs"),
            ('urls = ["https://a"]\nusername = "u"', "a username needs a password"),
            ('urls = ["https://a"]\napi_key = "s3cret"\nbearer = "s3cret"', "give one of api_key"),
            ('urls = ["https://a"]\nheaders = {X = "s3cret\\nY: z"}', "'X' is not a one-line head"),
        ],
    )
    def test_a_malformed_entry_is_named_without_its_secrets(
        self, entry: str, words: str, file: Path
    ) -> None:
        file.write_text(f"[credentials.one]\n{entry}\n")
        with pytest.raises(ConfigError, match=words) as caught:
            named_credentials()
        assert "[credentials.one]" in str(caught.value)
        assert "s3cret" not in str(caught.value)


class TestOfElasticsearch:
    """Without a name, the settings of Elasticsearch serve the address in them alone."""

    def test_the_settings_file_serves_its_own_address(
        self, file: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """But for variables, which belong together, and may name another server."""
        file.write_text(MINE)
        assert default_url() == "https://mine:9200"
        expected = base64.b64encode(b"me:s3cret").decode()
        found = credentials_for(None, "https://mine:9200/path")
        assert found.request_headers() == {"Authorization": f"Basic {expected}"}
        of_elasticsearch(monkeypatch, api_key="key")
        found = credentials_for(None, "https://mine:9200")
        assert found.request_headers() == {"Authorization": "ApiKey key"}
        for url in ("https://other:9200", "http://mine:9200", "https://mine"):
            assert credentials_for(None, url) == Credentials()
        monkeypatch.delenv("FAIRQR_ELASTICSEARCH_API_KEY")
        of_elasticsearch(monkeypatch, url="https://other:9200")
        assert credentials_for(None, "https://other:9200") == Credentials()

    def test_credentials_in_the_address_win_and_are_decoded(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        of_elasticsearch(monkeypatch, url="https://el%40stic:s3cret%2F%3A@host/es/", api_key="x")
        assert default_url() == "https://host/es"
        sent = base64.b64encode(b"el@stic:s3cret/:").decode()
        found = credentials_for(None, "https://host").request_headers()
        assert found == {"Authorization": f"Basic {sent}"}

    @pytest.mark.parametrize("url", ["ftp://u:s3cret@h", "http://", "s3cret"])
    def test_what_is_no_address_is_refused_and_not_shown(
        self, url: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        of_elasticsearch(monkeypatch, url=url)
        with pytest.raises(ConfigError, match="FAIRQR_ELASTICSEARCH_URL") as caught:
            credentials_for(None, "http://any")
        assert "s3cret" not in str(caught.value)


def test_secrets_do_not_show() -> None:
    found = Credentials(username="u", password="s3cret", headers={"X": "s3cret"})
    assert "s3cret" not in f"{found!r} {found} {found.model_dump()} {found.model_dump_json()}"
    assert Credentials(bearer="t").request_headers() == {"Authorization": "Bearer t"}
    assert Credentials(headers={"X-Key": "k"}).request_headers() == {"X-Key": "k"}
