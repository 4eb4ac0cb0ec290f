"""The commands ``fairqr config``, ``prompts``, ``models`` and ``trace``."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer
from pydantic import SecretStr

from fairqr.base import settings
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

config = typer.Typer()
models = typer.Typer()
prompts = typer.Typer()
trace = typer.Typer(callback=lambda: None)  # a group, although it has only one command

HIDDEN = "(hidden)"
"""Shown in place of a secret."""

CUT = "…"
"""Shown in place of the part of an address that may hold a secret."""


@command(config, "show")
def show_settings() -> Printed:
    """Print every setting, and where its value comes from; secrets are hidden."""
    entries = {}
    rows = []
    for setting in _all_settings():
        value = _without_secrets(setting.value)
        source = setting.source
        entries[setting.name] = {
            "value": value,
            "source": source.kind,
            "place": source.place or None,
        }
        # A variable says more by its name.
        origin = source.place if source.kind == "variable" else source.kind
        rows.append({"setting": setting.name, "value": value, "from": origin})

    file = settings.config_path()
    exists = os.path.exists(file)
    warnings = [*unknown_settings(), *_open_to_others(file, entries.values())]
    data = {"file": str(file), "exists": exists, "settings": entries, "warnings": warnings}
    missing = "" if exists else " (does not exist)"
    lines = [f"settings file: {file}{missing}", listing(rows, "setting", "value", "from")]
    return Printed(data, lines, warnings=warnings)


def unknown_settings() -> Iterator[str]:
    """Yield a warning for each variable that looks like a setting, but is unknown."""
    variables_of_service = service_variables()
    variables = [*variables_of_service]
    for setting in settings.SETTINGS:
        variables.append(settings.variable_of(setting.name))
    for name in settings.unknown_variables(variables_of_service):
        advice = nearest_names(name, variables) or "remove it."
        yield f"The variable {name!a} is not a setting and has no effect; {advice}"


class EffectiveSetting(NamedTuple):
    """A setting as it is in effect; a value that is a secret is a SecretStr."""

    name: str
    value: Any
    source: settings.ValueSource


def _all_settings() -> Iterator[EffectiveSetting]:
    """Yield all settings: our own, credentials, and those of the service."""
    for setting in settings.SETTINGS:
        value, source = settings.find(setting.name)
        if setting.secret and value:
            value = SecretStr(str(value))
        yield EffectiveSetting(setting.name, value, source)

    settings_file = settings.ValueSource("file", str(settings.config_path()))
    for entry, credentials in named_credentials().items():
        for name, value in _leaves(credentials.model_dump(exclude_defaults=True)):
            full_name = f"{settings.CREDENTIALS}.{entry}.{name}"
            yield EffectiveSetting(full_name, value, settings_file)

    for name, value in _leaves(service_settings().model_dump()):
        # A text that is not a URL may be a list of words with the password among them.
        if name == "database" and value and "://" not in value:
            value = SecretStr(value)
        yield EffectiveSetting(f"{settings.SERVICE}.{name}", value, source_of(name, {}))


def _leaves(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the values within nested mappings, with dots between the names."""
    for name, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _without_secrets(value: Any) -> Any:
    """Return a value as users may see it: no secret, and a URL without user and parameters."""
    if value in (None, "", (), {}):
        return None
    if isinstance(value, SecretStr):
        return HIDDEN
    if isinstance(value, tuple):
        return [_without_secrets(part) for part in value]
    if isinstance(value, str | Path):
        return _without_user(str(value))
    return value


def _without_user(text: str) -> str:
    """Return a URL without its user and its parameters; other texts stay as they are."""
    scheme, separator, address = text.partition("://")
    if not separator:
        return text
    user, _, location = address.rpartition("@")
    path, mark, _ = location.partition("?")
    hidden_user = f"{CUT}@" if user else ""
    hidden_parameters = f"?{CUT}" if mark else ""
    return f"{scheme}://{hidden_user}{path}{hidden_parameters}"


def _open_to_others(file: Path, entries: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """Yield a warning if other users can change the settings file, or read secrets in it."""
    if os.name != "posix" or not file.is_file():
        return
    mode = file.stat().st_mode
    if mode & 0o022:
        yield f"Other users can change the settings file {file}; run 'chmod go-w {file}'."

    values = [str(entry["value"]) for entry in entries if entry["source"] == "file"]
    has_secrets = any(HIDDEN in value or CUT in value for value in values)
    if mode & 0o044 and has_secrets:
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
    names = library.names()
    wrong = 0
    for id_, version in names:
        is_default = DEFAULT_VERSIONS.get(id_, "v1") == version
        mark = "*" if is_default else " "
        try:
            template = library.get(id_, version)
            about = f"{template.sha256[:12]}  {template.description}"
        except PromptError as error:
            wrong += 1
            about = str(error)
        name = f"{id_}={version}"
        typer.echo(f"{mark} {name:17} {about}")
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
    file_name = f"{template.name}.yaml"
    folder = prompts or settings.path_of("prompts_dir") or SHIPPED
    file = folder / file_name
    print_file(file if file.is_file() else SHIPPED / file_name)


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

    chosen = [lookup(name.removeprefix("local:")) for name in names or WEIGHTS]
    fetched = [weights for weights in chosen if missing(weights.name)]
    fetch(fetched)
    for weights in chosen:
        state = "is ready" if weights in fetched else "is already there"
        typer.echo(f"{weights.full_name} {state}: {weights_path(weights.name)}")


def fetch(models_to_fetch: Sequence[Weights]) -> None:
    """Pull the weights of models side by side, each with a bar."""
    from concurrent.futures import ThreadPoolExecutor

    from fairqr.base import weights

    with Progress() as progress, ThreadPoolExecutor() as pool:
        names = []
        bars = []
        for model in models_to_fetch:
            names.append(model.name)
            bars.append(progress.count(f"Fetching {model.full_name} (MB)", 1e6))
        list(pool.map(weights.pull, names, bars))


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
    steps = sorted(_read_steps(file))
    rows = []
    for step in steps:
        seconds = step.start - steps[0].start
        times = (f"{seconds:.2f}", f"{step.milliseconds:.1f}")
        rows.append((*times, step.name, step.status, step.details))
    heads = (number("after s"), number("ms"), "step", "status", "says")
    say([table(heads, rows)])


class RecordedStep(NamedTuple):
    """A step of a recorded run: when it began, how long it took, and what it says."""

    start: float
    milliseconds: float
    name: str
    status: str
    details: str


def _read_steps(file: Path) -> list[RecordedStep]:
    """Read the steps of a recorded run.

    Raises:
        InputError: The file is not a recorded run.
    """
    steps: list[RecordedStep] = []
    # A killed run may have ended within a character. Some characters in texts end a line for
    # Python's splitlines, but not in JSON.
    lines = file.read_bytes().decode("utf-8", "replace").split("\n")
    for line_number, line in enumerate(lines, start=1):
        try:
            steps.append(_step_of(json.loads(line)))
        except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
            # The last line is empty, or cut off where the run was killed.
            is_last = line_number == len(lines)
            if steps and is_last:
                break
            raise InputError(
                f"{file}, line {line_number} is not a span of a run; "
                "name a file that 'fairqr search --trace' wrote."
            ) from None
    return steps


def _step_of(span: Mapping[str, Any]) -> RecordedStep:
    """Return the step that a span records."""
    return RecordedStep(
        start=float(span["start"]),
        milliseconds=float(span["milliseconds"]),
        name=str(span["name"]),
        status="" if span["status"] == "ok" else str(span["status"]),
        details="; ".join(_details_of(span)),
    )


def _details_of(span: Mapping[str, Any]) -> Iterator[str]:
    """Yield the attributes and the events of a step."""
    for key, value in span["attributes"].items():
        yield f"{key.removeprefix('fairqr.')}: {value}"
    for event in span["events"]:
        values = " ".join(map(str, event["attributes"].values()))
        yield f"{event['name'].removeprefix('fairqr.')}: {values}"
