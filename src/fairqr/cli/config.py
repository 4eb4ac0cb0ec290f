"""The commands ``fairqr config …``."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import typer

from fairqr.cli.options import command
from fairqr.cli.output import MISSING, Printed, table, warn

if TYPE_CHECKING:
    from fairqr.base.settings import ValueSource

app = typer.Typer()

HIDDEN = "(hidden)"


class Row(NamedTuple):
    """A setting as ``fairqr config show`` prints it.

    Attributes:
        name: The name, after its section in the settings file and a dot.
        value: The value, or None; never a secret.
        source: Where the value comes from.
        private: Whether a secret was hidden in the value.
    """

    name: str
    value: Any
    source: ValueSource
    private: bool


@command(app)
def path() -> None:
    """Print the path of the settings file; the variable FAIRQR_CONFIG changes it."""
    from fairqr.base.settings import config_path

    typer.echo(str(config_path()))


@command(app)
def show(*, as_json: bool = False) -> Printed:
    """Print every setting, and where its value comes from; secrets are hidden.

    Args:
        as_json: Print one JSON object.
    """
    from fairqr.base.settings import config_path

    file = config_path()
    rows = [*_general(), *_credentials(), *_service()]
    warnings = [*unknown_settings(), *_open_to_others(file, rows)]
    for warning in [] if as_json else warnings:
        warn(warning)
    sources = ({"source": it.source.kind, "place": it.source.place or None} for it in rows)
    exists = os.path.exists(file)
    data = {
        "file": str(file),
        "exists": exists,
        "settings": {
            row.name: {"value": row.value, **source}
            for row, source in zip(rows, sources, strict=True)
        },
        "warnings": warnings,
    }
    told = f"settings file: {file}{'' if exists else ' (does not exist)'}"
    return Printed(data, [told, table(["", "", ""], map(_texts, rows))])


def unknown_settings() -> Iterator[str]:
    """Yield a warning for each variable that looks like a setting, but is unknown."""
    from difflib import get_close_matches

    from fairqr.base.settings import SETTINGS, unknown_variables, variable_of
    from fairqr.graph.service.configuration import service_variables

    service = service_variables()
    known = [*service, *(variable_of(setting.name) for setting in SETTINGS)]
    for name in unknown_variables(service):
        near = get_close_matches(name, known, n=1)
        meant = f"did you mean {near[0]}?" if near else "remove it."
        yield f"The variable {name!a} is not a setting and has no effect; {meant}"


def _general() -> Iterator[Row]:
    from fairqr.base.settings import SETTINGS, find

    for setting in SETTINGS:
        yield _row(setting.name, *find(setting.name), secret=setting.secret)


def _credentials() -> Iterator[Row]:
    from fairqr.base.settings import CREDENTIALS, ValueSource, config_path
    from fairqr.retrieval.sources.credentials import named_credentials

    source = ValueSource("file", str(config_path()))
    for name, entry in named_credentials().items():
        section = f"{CREDENTIALS}.{name}"
        for key in ("urls", "username", "ca_certs"):
            if value := getattr(entry, key):
                yield _row(f"{section}.{key}", value, source)
        for key in ("api_key", "password", "bearer"):
            if getattr(entry, key):
                yield _row(f"{section}.{key}", HIDDEN, source, secret=True)
        for header in entry.headers:
            yield _row(f"{section}.headers.{header}", HIDDEN, source, secret=True)


def _service() -> Iterator[Row]:
    from fairqr.base.settings import SERVICE
    from fairqr.graph.service.configuration import gather

    settings, sources = gather()
    yield from _fields(SERVICE, settings, "", sources)


def _fields(section: str, entry: Any, within: str, sources: Mapping[str, Any]) -> Iterator[Row]:
    """Yield the fields of a section of the service's settings, and of those within it."""
    from fairqr.base.settings import ValueSource

    for name in type(entry).model_fields:
        value, path = getattr(entry, name), f"{within}{name}"
        if name == "models" and value:
            for model, each in value.items():
                yield from _fields(f"{section}.models.{model}", each, f"{path}.{model}.", sources)
        elif hasattr(type(value), "model_fields"):
            yield from _fields(f"{section}.{name}", value, f"{path}.", sources)
        else:
            # A text that is not a URL may be a list of words with the password among them.
            hides = name == "api_key" or (name == "database" and "://" not in value)
            source = sources.get(path, ValueSource())
            yield _row(f"{section}.{name}", value, source, secret=hides)


def _row(name: str, value: Any, source: ValueSource, *, secret: bool = False) -> Row:
    """Return a setting as it may be shown."""
    if isinstance(value, Path):
        value = str(value)
    if value in (None, "", (), {}):
        return Row(name, None, source, False)
    if secret:
        return Row(name, HIDDEN, source, True)
    if isinstance(value, tuple):
        texts = [str(one) for one in value]
        shown: Any = [_without_secrets(text) for text in texts]
        return Row(name, shown, source, shown != texts)
    shown = _without_secrets(value) if isinstance(value, str) else value
    return Row(name, shown, source, shown != value)


def _without_secrets(text: str) -> str:
    """Return a text; a URL loses its user, password and parameters."""
    scheme, separator, rest = text.partition("://")
    if not separator:
        return text
    _, at, rest = rest.rpartition("@") if "@" in rest else ("", "", rest)
    place, mark, _ = rest.partition("?")
    return f"{scheme}://{'…@' if at else ''}{place}{'?…' if mark else ''}"


def _open_to_others(file: Path, rows: Iterable[Row]) -> Iterator[str]:
    """Yield a warning if other users can change the settings file, or read secrets in it."""
    if os.name != "posix" or not file.is_file():
        return
    mode = file.stat().st_mode
    private = [row for row in rows if row.private and row.source.kind == "file"]
    if mode & 0o022:
        yield f"Other users can change the settings file {file}; run 'chmod go-w {file}'."
    if mode & 0o044 and private:
        yield (
            f"Other users can read the settings file {file}, which holds secrets; "
            f"run 'chmod 600 {file}'."
        )


def _texts(row: Row) -> tuple[str, str, str]:
    """Return the name, the value and the source of a setting, for people."""
    value, source = row.value, row.source
    where = source.place if source.kind == "variable" else source.kind
    if value is None:
        return row.name, MISSING, MISSING if source.kind == "default" else where
    if isinstance(value, list):
        value = ", ".join(value)
    elif isinstance(value, bool):
        value = "on" if value else "off"
    elif isinstance(value, float):
        value = f"{value:g}"
    return row.name, str(value), where
