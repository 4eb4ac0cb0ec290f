"""The settings, and where fairqr keeps its files.

Explicit arguments win over ``FAIRQR_…`` variables, variables over the settings file, and the file
over the defaults. :data:`SETTINGS` lists all settings. Two sections of the file are described
elsewhere: ``[service]`` in :mod:`fairqr.graph.service.configuration`, and ``[credentials]`` in
:mod:`fairqr.retrieval.sources.credentials`.

The variable ``FAIRQR_CONFIG`` names the settings file. By default it is ``fairqr.toml`` in the
user's configuration folder. We never look in the current folder: somebody who unpacks an archive
and works in it must not send queries and keys to a server that the archive names.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, NamedTuple
from urllib.parse import urlsplit

import platformdirs

from fairqr.base.errors import ConfigError, nearest_names, one_line

DEFAULT_CORPUS = "notables"
DEFAULT_MODEL = "local:smollm2-135m"
DEFAULT_POOL = 20
"""The default number of documents from which the rankings of an answer are drawn."""

REASONING_TOKENS = 4096
"""How many tokens a model that thinks before it answers may use for that."""

DEFAULT_TIMEOUT = 60.0
"""The default number of seconds that one request to a model may take."""

CONFIG_VARIABLE = "FAIRQR_CONFIG"
SERVICE = "service"
CREDENTIALS = "credentials"
ELSEWHERE = (SERVICE, CREDENTIALS)
"""The sections that other modules describe."""

# FAIRQR_CONFIG and the variables of our own tests: no reason to warn.
_NOT_SETTINGS = (CONFIG_VARIABLE, "FAIRQR_TEST_", "FAIRQR_SKIP_")
_SWITCH = {"1": True, "true": True, "yes": True, "on": True}
_SWITCH |= {"0": False, "false": False, "no": False, "off": False}


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
_PLATFORM = {"data_dir": platformdirs.user_data_dir, "cache_dir": platformdirs.user_cache_dir}


class ValueSource(NamedTuple):
    """Where a value comes from.

    Attributes:
        kind: ``argument``, ``variable``, ``file``, or ``default``.
        place: The variable's name, or the file's path.
    """

    kind: Literal["argument", "variable", "file", "default"] = "default"
    place: str = ""


class EffectiveValue(NamedTuple):
    """A setting's effective value (None if it has none), and where it comes from."""

    value: str | bool | None
    source: ValueSource = ValueSource()


def variable_of(name: str) -> str:
    """Return the variable of a setting: ``FAIRQR_ELASTICSEARCH_URL`` for ``elasticsearch.url``."""
    return f"FAIRQR_{name.replace('.', '_').upper()}"


def config_path() -> Path:
    """Return the path of the settings file, whether the file exists or not."""
    stated = os.environ.get(CONFIG_VARIABLE)
    if stated:
        return Path(stated)
    return Path(platformdirs.user_config_dir("fairqr", appauthor=False)) / "fairqr.toml"


def find(name: str) -> EffectiveValue:
    """Return the effective value of a setting.

    A path that the file gives is relative to the file's folder, and may begin with ``~``.

    Args:
        name: As in :data:`SETTINGS`.

    Raises:
        ConfigError: The settings file, or the value of the variable, is wrong.
    """
    setting = _BY_NAME[name]
    variable = variable_of(name)
    text = os.environ.get(variable, "")
    if text:
        return EffectiveValue(_value_in(variable, text, setting), ValueSource("variable", variable))

    value, file = file_section(name)
    if value not in (None, ""):
        if setting.kind == "path":
            value = str(beside(file, value))
        return EffectiveValue(value, ValueSource("file", str(file)))

    if name in _PLATFORM:
        return EffectiveValue(_PLATFORM[name]("fairqr", appauthor=False))
    return EffectiveValue(setting.default)


def _value_in(variable: str, text: str, setting: Setting) -> str | bool:
    """Return the value of a setting that a variable states.

    Raises:
        ConfigError: It is neither on nor off, though the setting is a switch.
    """
    if setting.kind != "switch":
        return text
    value = _SWITCH.get(text.strip().lower())
    if value is None:
        raise ConfigError(f"The variable {variable} must be on or off; set it to 1 or to 0.")
    return value


def text_of(name: str) -> str | None:
    """Return the effective value of a text setting, or None if it has none."""
    value = find(name).value
    return value if isinstance(value, str) else None


def path_of(name: str) -> Path | None:
    """Return the effective value of a path setting, or None if it has none."""
    path = text_of(name)
    return Path(path) if path else None


def is_on(name: str) -> bool:
    """Return whether a switch is on."""
    return find(name).value is True


def data_dir() -> Path:
    """Return the folder of indexes; it defaults to the platform's user data folder."""
    return Path(text_of("data_dir") or "")


def cache_dir() -> Path:
    """Return the folder of weights and replies; it defaults to the platform's cache folder."""
    return Path(text_of("cache_dir") or "")


def default_corpus() -> str:
    """Return the name of the default corpus."""
    return text_of("corpus") or DEFAULT_CORPUS


def default_model() -> str:
    """Return the name of the default language model."""
    return text_of("model") or DEFAULT_MODEL


def file_section(name: str) -> tuple[Any, Path]:
    """Return what the settings file has under a name, and the file's path.

    Args:
        name: A setting, or one of the sections :data:`ELSEWHERE`. Without the latter in the file,
            the section is empty; without the former, the value is None.

    Raises:
        ConfigError: The file cannot be read, is not TOML, or has an unknown or wrong setting.
    """
    file = config_path()
    # A default file need not exist. Unlike Path.exists, this does not fail without permissions.
    has_file = os.environ.get(CONFIG_VARIABLE) or os.path.exists(file)
    values = _read(file) if has_file else {}
    default: Any = {} if name in ELSEWHERE else None
    return values.get(name, default), file


def unknown_variables(known: Iterable[str]) -> list[str]:
    """Return the variables ``FAIRQR_…`` that no setting has, sorted.

    Args:
        known: Variables that are known besides those of :data:`SETTINGS`.
    """
    known_variables = {*map(variable_of, _BY_NAME), *known}
    unknown = []
    for variable in sorted(os.environ):
        is_ours = variable.startswith("FAIRQR_") and not variable.startswith(_NOT_SETTINGS)
        if is_ours and variable not in known_variables:
            unknown.append(variable)
    return unknown


def beside(file: Path, path: str) -> Path:
    """Return a path from the settings file, relative to the file's folder."""
    return file.absolute().parent / os.path.expanduser(path)


@lru_cache(maxsize=8)
def _read(file: Path) -> dict[str, Any]:
    """Return the settings of a file by their names, and the sections that are described elsewhere.

    A file is read once in a process, so that the settings do not change during a run.
    """
    try:
        contents = tomllib.loads(file.read_bytes().decode("utf-8-sig"))
    except (OSError, ValueError, RecursionError) as error:  # not there, not UTF-8, or not TOML
        reason = one_line(error).rstrip(".")
        raise ConfigError(f"The settings file {file} cannot be read ({reason}); fix it.") from None

    values: dict[str, Any] = {}
    for key, value in contents.items():
        is_section = isinstance(value, dict) and key not in ELSEWHERE
        if is_section:
            values |= {f"{key}.{name}": value[name] for name in value}
        else:
            values[key] = value
    for name, value in values.items():
        _check_value(file, name, value)
    return values


def _check_value(file: Path, name: str, value: object) -> None:
    """Refuse a setting of a file that does not exist, or whose value has the wrong type.

    Raises:
        ConfigError: It does.
    """
    names = (*_BY_NAME, *ELSEWHERE)
    if name not in names:
        advice = nearest_names(name, names) or "remove it."
        problem = f"has '{one_line(name, 80)}', which is no setting; {advice}"
        raise ConfigError(f"The settings file {file} {problem}")

    form = "text in quotes"
    kind: type = str
    if name in ELSEWHERE:
        form = f"[{name}] above its settings"
        kind = dict
    elif _BY_NAME[name].kind == "switch":
        form = "true or false"
        kind = bool
    if not isinstance(value, kind):
        raise ConfigError(f"In the settings file {file}, {name} is wrong; write {form}.")


def is_web_address(text: str) -> bool:
    """Return whether a text is the address of a server, such as ``http://127.0.0.1:8000/v1``."""
    try:
        parts = urlsplit(text)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False
