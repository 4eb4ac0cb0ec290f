"""The commands ``fairqr prompts …``."""

from __future__ import annotations

import sys
from pathlib import Path

import typer

from fairqr.base.errors import PromptError
from fairqr.cli.options import command

app = typer.Typer()


@command(app)
def list_(*, prompts: Path | None = None) -> None:
    """List all prompts; an asterisk marks the default version.

    Args:
        prompts: A folder with your own prompts. [default: FAIRQR_PROMPTS_DIR]
    """
    from fairqr.prompts.library import DEFAULT_VERSIONS, PromptLibrary

    library = PromptLibrary(prompts)
    for id_, version in library.names():
        template = library.get(id_, version)
        mark = "*" if DEFAULT_VERSIONS.get(template.id, "v1") == template.version else " "
        name = f"{template.id}={template.version}"
        typer.echo(f"{mark} {name:17} {template.sha256[:12]}  {template.description}")


@command(app)
def show(prompt: str, *, prompts: Path | None = None, yaml: bool = False) -> None:
    """Print a prompt as the model gets it, with placeholders in braces.

    Args:
        prompt: The prompt, such as refine or refine=v2.
        prompts: A folder with your own prompts. [default: FAIRQR_PROMPTS_DIR]
        yaml: Print the file itself, ready to copy.
    """
    from fairqr.base.settings import path_of
    from fairqr.prompts.library import SHIPPED, PromptLibrary

    id_, _, version = prompt.partition("=")
    template = PromptLibrary(prompts).get(id_, version or None)
    if yaml:
        file = f"{template.id}/{template.version}.yaml"
        own = (prompts or path_of("prompts_dir") or SHIPPED) / file
        # Bytes keep the hash of the file.
        sys.stdout.buffer.write((own if own.is_file() else SHIPPED / file).read_bytes())
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


@command(app)
def check(*, prompts: Path | None = None) -> None:
    """Check all prompts, including yours, and name each file that is wrong.

    Args:
        prompts: A folder with your own prompts. [default: FAIRQR_PROMPTS_DIR]
    """
    from fairqr.prompts.library import PromptLibrary

    library = PromptLibrary(prompts)
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
