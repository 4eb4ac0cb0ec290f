"""The commands ``fairqr prompts …``."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from fairqr.base.errors import PromptError
from fairqr.cli.common import PromptsFolder

app = typer.Typer()


@app.command("list")
def list_(folder: PromptsFolder = None) -> None:
    """List all prompts; an asterisk marks the default version."""
    from fairqr.prompts.library import DEFAULT_VERSIONS, PromptLibrary

    library = PromptLibrary(folder)
    for id_, version in library.names():
        template = library.get(id_, version)
        mark = "*" if DEFAULT_VERSIONS.get(template.id, "v1") == template.version else " "
        name = f"{template.id}={template.version}"
        typer.echo(f"{mark} {name:17} {template.sha256[:12]}  {template.description}")


@app.command()
def show(
    prompt: Annotated[str, typer.Argument(help="The prompt, such as refine or refine=v2.")],
    folder: PromptsFolder = None,
    as_yaml: Annotated[
        bool, typer.Option("--yaml", help="Print the file itself, ready to copy.")
    ] = False,
) -> None:
    """Print a prompt as the model gets it, with placeholders in braces."""
    from fairqr.base.settings import path_of
    from fairqr.prompts.library import SHIPPED, PromptLibrary

    id_, _, version = prompt.partition("=")
    template = PromptLibrary(folder).get(id_, version or None)
    if as_yaml:
        own = (
            (folder or path_of("prompts_dir") or SHIPPED) / template.id / f"{template.version}.yaml"
        )
        shipped = SHIPPED / template.id / f"{template.version}.yaml"
        # Bytes keep the hash of the file.
        sys.stdout.buffer.write((own if own.is_file() else shipped).read_bytes())
        sys.stdout.buffer.flush()
        return
    typer.echo(f"{template.id} {template.version}: {template.description}")
    typer.echo(f"sha256 {template.sha256}")
    typer.echo(f"input  {', '.join(template.input_variables)}")
    typer.echo(f"output {', '.join(template.output) or 'a text'}")
    if template.item is not None:
        typer.echo(f"item   {template.item}")
    typer.echo(
        f"sent at temperature {template.defaults.temperature:g}, "
        f"for at most {template.defaults.max_tokens} tokens"
    )
    names = {name: f"{{{name}}}" for name in template.input_variables}
    for message in template.render(names):
        typer.echo(f"\n--- {message['role']}\n{message['content']}")


@app.command()
def check(folder: PromptsFolder = None) -> None:
    """Check all prompts, including yours, and name each file that is wrong."""
    from fairqr.prompts.library import PromptLibrary

    library = PromptLibrary(folder)
    names = library.names()
    wrong = 0
    for id_, version in names:
        try:
            library.get(id_, version)
        except PromptError as error:
            wrong += 1
            typer.echo(str(error))
    if wrong:
        raise PromptError(f"{wrong} of {len(names)} prompts are wrong; fix them.")
    typer.echo(f"All {len(names)} prompts are valid.")
