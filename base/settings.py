"""The settings, and where fairqr keeps its files.

Explicit arguments win over ``FAIRQR_…`` variables, variables over the settings file, and the file
over the defaults. :data:`SETTINGS` lists all settings. Three sections of the file are described
elsewhere: ``[service]`` in :mod:`fairqr.graph.service.configuration`, ``[credentials]`` in
:mod:`fairqr.retrieval.sources.credentials` and ``[prices]`` in :mod:`fairqr.base.prices`.

The variable ``FAIRQR_CONFIG`` names the settings file. By default it is ``fairqr.toml`` in the
user's configuration folder. We never look in the current folder: somebody who unpacks an archive
and works in it must not send queries and keys to a server that the archive names.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Literal, NamedTuple
from urllib.parse import urlsplit

import platformdirs

from fairqr.base.errors import ConfigError, one_line
from fairqr.base.settings_file import CONFIG_VARIABLE, config_path, contents_of

DEFAULT_CORPUS = "notables"
DEFAULT_MODEL = "local:smollm2-135m"
DEFAULT_POOL = 20
"""The default number of documents from which the rankings of an answer are drawn."""

SERVICE = "service"
CREDENTIALS = "credentials"
PRICES = "prices"
ELSEWHERE = (SERVICE, CREDENTIALS, PRICES)
"""The sections that other modules describe."""

_ON = ("1", "true", "yes", "on")
_OFF = ("0", "false", "no", "off")
# FAIRQR_CONFIG and the variables of our own tests: no reason to warn.
_NOT_SETTINGS = (CONFIG_VARIABLE, "FAIRQR_TEST_", "FAIRQR_SKIP_")


class Setting(NamedTuple):
    """A setting.

    Attributes:
        name: Its name in the settings file; the part before a dot is the section.
        about: A line that explains it to users.
        kind: ``text``, ``path`` (in the file, relative to the file's folder) or ``switch``.
        default: Optional. The folders of data and cache depend on the platform.
        secret: Whether its value is never shown.
    """

    name: str
    about: str
    kind: Literal["text", "path", "switch"] = "text"
    default: str | bool | None = None
    secret: bool = False


SETTINGS = (
    Setting("model", "The default language model.", default=DEFAULT_MODEL),
    Setting("base_url", "The server for models `openai:…`, instead of OpenAI's."),
    Setting("corpus", "The default corpus.", default=DEFAULT_CORPUS),
    Setting("data_dir", "The folder for indexes and collections.", "path"),
    Setting("cache_dir", "The folder for weights and cached model replies.", "path"),
    Setting("prompts_dir", "A folder with your own prompts.", "path"),
    Setting("trace_dir", "A folder in which every run of a command is recorded.", "path"),
    Setting("trace_content", "Record queries, documents and replies too.", "switch", False),
    Setting("elasticsearch.url", "The address of the Elasticsearch server."),
    Setting("elasticsearch.api_key", "An API key, encoded as Elasticsearch shows it.", secret=True),
    Setting("elasticsearch.username", "A user name, instead of an API key."),
    Setting("elasticsearch.password", "The user's password.", secret=True),
    Setting("elasticsearch.ca_certs", "A file or folder of certificates to trust.", "path"),
)

_BY_NAME = {setting.name: setting for setting in SETTINGS}
_PLATFORM: dict[str, Callable[..., str]] = {
    "data_dir": platformdirs.user_data_dir,
    "cache_dir": platformdirs.user_cache_dir,
}


class Source(NamedTuple):
    """Where a value comes from.

    Attributes:
        kind: ``argument``, ``variable``, ``file``, or ``default``.
        place: The variable's name, or the file's path.
    """

    kind: Literal["argument", "variable", "file", "default"] = "default"
    place: str = ""


class Found(NamedTuple):
    """A setting's effective value (None if it has none), and where it comes from."""

    value: str | bool | None
    source: Source = Source()


def variable_of(name: str) -> str:
    """Return the variable of a setting: ``FAIRQR_ELASTICSEARCH_URL`` for ``elasticsearch.url``."""
    return f"FAIRQR_{name.replace('.', '_').upper()}"


def find(name: str, *, file_only: bool = False) -> Found:
    """Return the effective value of a setting.

    A path that the file gives is relative to the file's folder, and may begin with ``~``.

    Args:
        name: As in :data:`SETTINGS`.
        file_only: Ignore the variable.

    Raises:
        ConfigError: The settings file, or the value of the variable, is wrong.
    """
    setting, variable = _BY_NAME[name], variable_of(name)
    if not file_only and (given := os.environ.get(variable)):
        return Found(_of_variable(setting, variable, given), Source("variable", variable))
    file = config_path()
    section, _, key = name.rpartition(".")
    table = contents_of(file, _check)
    held = (table.get(section, {}) if section else table).get(key)
    if held not in (None, ""):
        value = str(beside(file, held)) if setting.kind == "path" else held
        return Found(value, Source("file", str(file)))
    if name in _PLATFORM:
        return Found(_PLATFORM[name]("fairqr", appauthor=False))
    return Found(setting.default)


def text_of(name: str) -> str | None:
    """Return the effective value of a text setting, or None if it has none."""
    value = find(name).value
    return value if isinstance(value, str) else None


def path_of(name: str) -> Path | None:
    """Return the effective value of a path setting, or None if it has none."""
    value = text_of(name)
    return Path(value) if value else None


def is_on(name: str) -> bool:
    """Return whether a switch is on."""
    return find(name).value is True


def data_dir() -> Path:
    """Return the folder of indexes; it defaults to the platform's user data folder."""
    return Path(text_of("data_dir") or "")


def cache_dir() -> Path:
    """Return the folder of weights and replies; it defaults to the platform's cache folder."""
    return Path(text_of("cache_dir") or "")


def prompts_dir() -> Path | None:
    """Return the folder of the user's own prompts, if there is one."""
    return path_of("prompts_dir")


def default_corpus() -> str:
    """Return the name of the default corpus."""
    return text_of("corpus") or DEFAULT_CORPUS


def default_model() -> str:
    """Return the name of the default language model."""
    return text_of("model") or DEFAULT_MODEL


def file_section(name: str) -> tuple[dict[str, Any], Path]:
    """Return a section of the settings file (empty if it is missing), and the file's path.

    Raises:
        ConfigError: The file cannot be read, is not TOML, or has an unknown or wrong setting.
    """
    file = config_path()
    return contents_of(file, _check).get(name, {}), file


def unknown_variables(known: Iterable[str]) -> list[str]:
    """Return the variables ``FAIRQR_…`` that no setting has, sorted.

    Args:
        known: Variables that are known besides those of :data:`SETTINGS`.
    """
    names = {variable_of(setting.name) for setting in SETTINGS} | set(known)
    return sorted(
        name
        for name in os.environ
        if name.startswith("FAIRQR_") and name not in names and not name.startswith(_NOT_SETTINGS)
    )


def _of_variable(setting: Setting, variable: str, given: str) -> str | bool:
    if setting.kind != "switch":
        return given
    said = given.strip().lower()
    if said not in _ON + _OFF:
        raise ConfigError(f"The variable {variable} must be on or off; set it to 1 or to 0.")
    return said in _ON


def beside(file: Path, held: str) -> Path:
    """Return a path from the settings file, relative to the file's folder.

    Raises:
        ConfigError: It begins with ``~`` and the name of an unknown user.
    """
    try:
        return file.absolute().parent / Path(held).expanduser()
    except RuntimeError:  # the user does not exist
        raise ConfigError(
            f"In the settings file {file}, '{held}' names no home folder; write the full path."
        ) from None


def _check(file: str, table: dict[str, Any], section: str = "") -> None:
    """Check that a table has only known settings, with values of the right kind."""
    sections = {name.partition(".")[0] for name in _BY_NAME if "." in name} | {*ELSEWHERE}
    for key, value in table.items():
        name = f"{section}.{key}" if section else key
        if not section and key in sections:
            if not isinstance(value, dict):
                raise ConfigError(
                    f"In the settings file {file}, {key} must be a section; write [{key}]."
                )
            if key not in ELSEWHERE:
                _check(file, value, key)
        elif name not in _BY_NAME:
            raise ConfigError(
                f"The settings file {file} has '{one_line(name, 80)}', which is not a setting"
                f"{_meant(name, [*_BY_NAME, *sections])}; correct or remove it."
            )
        else:
            _check_kind(file, _BY_NAME[name], value)


def _check_kind(file: str, setting: Setting, value: Any) -> None:
    on_or_off = setting.kind == "switch"
    if isinstance(value, bool) if on_or_off else isinstance(value, str) and "\0" not in value:
        return
    wanted = "true or false" if on_or_off else "text in quotes"
    raise ConfigError(f"In the settings file {file}, {setting.name} is wrong; write {wanted}.")


def _meant(name: str, names: list[str]) -> str:
    from difflib import get_close_matches

    near = get_close_matches(name, names, n=1)
    return f" (did you mean '{near[0]}'?)" if near else ""


def is_web_address(text: str) -> bool:
    """Return whether a text is the address of a server, such as ``http://127.0.0.1:8000/v1``."""
    try:
        parts = urlsplit(text)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False
