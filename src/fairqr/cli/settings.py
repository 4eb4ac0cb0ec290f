"""The commands ``fairqr config``, ``prompts``, ``models`` and ``trace``."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from pydantic import SecretStr

from fairqr.base import settings as base
from fairqr.base.errors import InputError, PromptError, nearest_names
from fairqr.cli.measuring import measure_model
from fairqr.cli.options import command
from fairqr.cli.output import Printed, listing, number, print_file, say, table
from fairqr.cli.progress import Progress
from fairqr.graph.service.configuration import service_settings, service_variables, source_of
from fairqr.prompts.library import DEFAULT_VERSIONS, SHIPPED, PromptLibrary
from fairqr.retrieval.sources.credentials import named_credentials

if TYPE_CHECKING:
    from fairqr.base.weights import Weights

config, models, prompts = typer.Typer(), typer.Typer(), typer.Typer()
trace = typer.Typer(callback=lambda: None)  # a group, although it has only one command

HIDDEN, CUT = "(hidden)", "…"
"""Shown in place of a secret, and of the part of an address that may hold one."""


@command(config, "show")
def show_settings() -> Printed:
    """Print every setting, and where its value comes from; secrets are hidden."""
    file = base.config_path()
    settings = {
        name: {"value": _shown(value), "source": source.kind, "place": source.place or None}
        for name, value, source in _settings()
    }
    warnings = [*unknown_settings(), *_open_to_others(file, settings.values())]
    exists = os.path.exists(file)
    data = {"file": str(file), "exists": exists, "settings": settings, "warnings": warnings}
    rows = (
        {"setting": name, **it, "from": it["place" if it["source"] == "variable" else "source"]}
        for name, it in settings.items()
    )
    told = f"settings file: {file}{'' if exists else ' (does not exist)'}"
    return Printed(data, [told, listing(rows, "setting", "value", "from")], warnings=warnings)


def unknown_settings() -> Iterator[str]:
    """Yield a warning for each variable that looks like a setting, but is unknown."""
    service = service_variables()
    known = [*service, *(base.variable_of(setting.name) for setting in base.SETTINGS)]
    for name in base.unknown_variables(service):
        meant = nearest_names(name, known) or "remove it."
        yield f"The variable {name!a} is not a setting and has no effect; {meant}"


def _settings() -> Iterator[tuple[str, Any, base.ValueSource]]:
    """Yield the name, the value and the source of each setting; a secret is a SecretStr."""
    for setting in base.SETTINGS:
        value, source = base.find(setting.name)
        yield setting.name, SecretStr(str(value)) if setting.secret and value else value, source
    of_file = base.ValueSource("file", str(base.config_path()))
    for entry, credentials in named_credentials().items():
        for name, value in _leaves(credentials.model_dump(exclude_defaults=True)):
            yield f"{base.CREDENTIALS}.{entry}.{name}", value, of_file
    for name, value in _leaves(service_settings().model_dump()):
        # A text that is not a URL may be a list of words with the password among them.
        hides = name == "database" and value and "://" not in value
        yield f"{base.SERVICE}.{name}", SecretStr(value) if hides else value, source_of(name, {})


def _leaves(values: Mapping[str, Any], within: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, f"{within}{name}.")
        else:
            yield f"{within}{name}", value


def _shown(value: Any) -> Any:
    """Return a value as it may be shown: no secret, and a URL without user and parameters."""
    if value in (None, "", (), {}):
        return None
    if isinstance(value, SecretStr):
        return HIDDEN
    if isinstance(value, tuple):
        return [_shown(each) for each in value]
    if not isinstance(value, str | Path):
        return value
    scheme, separator, rest = str(value).partition("://")
    if not separator:
        return scheme
    user, _, rest = rest.rpartition("@")
    place, mark, _ = rest.partition("?")
    return f"{scheme}://{f'{CUT}@' if user else ''}{place}{f'?{CUT}' if mark else ''}"


def _open_to_others(file: Path, settings: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """Yield a warning if other users can change the settings file, or read secrets in it."""
    if os.name != "posix" or not file.is_file():
        return
    mode = file.stat().st_mode
    of_file = [str(it["value"]) for it in settings if it["source"] == "file"]
    if mode & 0o022:
        yield f"Other users can change the settings file {file}; run 'chmod go-w {file}'."
    if mode & 0o044 and any(HIDDEN in text or CUT in text for text in of_file):
        yield (
            f"Other users can read the settings file {file}, which holds secrets; "
            f"run 'chmod 600 {file}'."
        )


@command(prompts, "list")
def list_prompts(
    *,
    prompts: Annotated[
        Path | None,
        typer.Option(
            "--prompts", help="A folder with your own prompts. [default: FAIRQR_PROMPTS_DIR]"
        ),
    ] = None,
) -> None:
    """Check and list all prompts, including yours; an asterisk marks the default version."""
    library = PromptLibrary(prompts)
    names, wrong = library.names(), 0
    for id_, version in names:
        mark = "*" if DEFAULT_VERSIONS.get(id_, "v1") == version else " "
        try:
            template = library.get(id_, version)
            told = f"{template.sha256[:12]}  {template.description}"
        except PromptError as error:
            wrong, told = wrong + 1, str(error)
        typer.echo(f"{mark} {f'{id_}={version}':17} {told}")
    if wrong:
        raise PromptError(f"{wrong} of {len(names)} prompts are wrong; fix them.")


@command(prompts, "show")
def show_prompt(
    prompt: Annotated[str, typer.Argument(help="The prompt, such as refine or refine=v2.")],
    *,
    prompts: Annotated[
        Path | None,
        typer.Option(
            "--prompts", help="A folder with your own prompts. [default: FAIRQR_PROMPTS_DIR]"
        ),
    ] = None,
) -> None:
    """Print the file of a prompt, to change a copy of it."""
    id_, _, version = prompt.partition("=")
    template = PromptLibrary(prompts).get(id_, version or None)
    file = f"{template.name}.yaml"
    own = (prompts or base.path_of("prompts_dir") or SHIPPED) / file
    print_file(own if own.is_file() else SHIPPED / file)


@command(models, "list")
def list_models() -> Printed:
    """List the embedded models, and whether their weights are in the cache."""
    from fairqr.base.weights import WEIGHTS, is_pulled, weights_path

    rows = [
        {
            "name": weights.full_name,
            "kind": weights.kind,
            "title": weights.title,
            "licence": weights.licence,
            "bytes": weights.size,
            "pulled": is_pulled(name),
            "path": str(weights_path(name)),
        }
        for name, weights in WEIGHTS.items()
    ]
    others = (
        "All models of LangChain's init_chat_model and init_embeddings work too, such as "
        "openai:gpt-4o or dense:openai:text-embedding-3-small."
    )
    return Printed(rows, [listing(rows, "name", "kind", "bytes", "pulled", "licence"), others])


@command(models)
def pull(
    names: Annotated[
        list[str] | None,
        typer.Argument(help="Names that 'fairqr models list' shows. [default: all]"),
    ] = None,
) -> None:
    """Download the weights of embedded models; an interrupted download resumes."""
    from fairqr.base.weights import WEIGHTS, lookup, missing, weights_path

    wanted = [lookup(name.removeprefix("local:")) for name in names or WEIGHTS]
    fetched = [weights for weights in wanted if missing(weights.name)]
    fetch(fetched)
    for weights in wanted:
        told = "is ready" if weights in fetched else "is already there"
        typer.echo(f"{weights.full_name} {told}: {weights_path(weights.name)}")


def fetch(wanted: Sequence[Weights]) -> None:
    """Pull the weights of models side by side, each with a bar."""
    from concurrent.futures import ThreadPoolExecutor

    from fairqr.base.weights import pull as pull_weights

    with Progress() as progress, ThreadPoolExecutor() as pool:
        bars = [progress.count(f"Fetching {weights.full_name} (MB)", 1e6) for weights in wanted]
        list(pool.map(pull_weights, [weights.name for weights in wanted], bars))


command(models, "measure")(measure_model)


@command(trace, "show")
def show_trace(
    file: Annotated[
        Path,
        typer.Argument(
            help="A file that 'fairqr search --trace' wrote, or one in the folder of traces."
        ),
    ],
) -> None:
    """Print the steps of a recorded run in order, with times, tokens and what they say."""
    rows = sorted(_steps(file))
    heads = (number("after s"), number("ms"), "step", "status", "says")
    cells = ((f"{at - rows[0][0]:.2f}", f"{ms:.1f}", *said) for at, ms, *said in rows)
    say([table(heads, cells)])


def _steps(file: Path) -> list[tuple[float, float, str, str, str]]:
    """Read when each step began and how long it took, its name, its status and what it says.

    Raises:
        InputError: The file is not a recorded run.
    """
    steps: list[tuple[float, float, str, str, str]] = []
    # A killed run may have ended within a character. Some characters in texts end a line for
    # Python's splitlines, but not in JSON.
    lines = file.read_bytes().decode("utf-8", "replace").split("\n")
    for number_, line in enumerate(lines, start=1):
        try:
            span = json.loads(line)
            status = "" if span["status"] == "ok" else str(span["status"])
            began, took = float(span["start"]), float(span["milliseconds"])
            steps.append((began, took, str(span["name"]), status, "; ".join(_said(span))))
        except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
            if steps and number_ == len(lines):  # empty, or cut off where the run was killed
                break
            raise InputError(
                f"{file}, line {number_} is not a span of a run; "
                "name a file that 'fairqr search --trace' wrote."
            ) from None
    return steps


def _said(span: Mapping[str, Any]) -> Iterator[str]:
    """Yield the attributes and the events of a step."""
    for key, value in span["attributes"].items():
        yield f"{key.removeprefix('fairqr.')}: {value}"
    for event in span["events"]:
        told = " ".join(map(str, event["attributes"].values()))
        yield f"{event['name'].removeprefix('fairqr.')}: {told}"
