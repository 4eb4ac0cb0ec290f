"""Which of the configured credentials go to a server of Elasticsearch."""

from __future__ import annotations

from urllib.parse import urlsplit

from fairqr.settings import Found, find

__all__ = ["configured_credentials"]

_NAMES = ("api_key", "username", "password")


def configured_credentials(url: str) -> dict[str, str | None]:
    """Return the configured ``api_key``, ``username`` and ``password`` for a server.

    Those of variables stand together, and win over all of the settings file's. The file's are for
    the server that it names, or for any where it names none: a server that an argument or a
    variable names must not get the key of another.

    Args:
        url: Of the server, sound.
    """
    found = {name: find(f"elasticsearch.{name}") for name in _NAMES}
    of_variables = {name: it for name, it in found.items() if it.source.kind == "variable"}
    if not of_variables and not _is_the_files(url):
        return {}
    return {name: _text(it) for name, it in (of_variables or found).items()}


def _is_the_files(url: str) -> bool:
    """Tell whether the settings file names this server, or none."""
    named = find("elasticsearch.url", file_only=True).value
    try:
        return named is None or _server(str(named)) == _server(url)
    except ValueError:
        return False


def _server(url: str) -> tuple[str, str | None, int]:
    parts = urlsplit(url.strip())
    return parts.scheme, parts.hostname, parts.port or (443 if parts.scheme == "https" else 80)


def _text(found: Found) -> str | None:
    return found.value if isinstance(found.value, str) else None
