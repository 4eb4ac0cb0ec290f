"""The entry point: runs a command, and turns errors into a sentence and exit code 2."""

from __future__ import annotations

import errno
import io
import os
import sys
from typing import Annotated, Any, NoReturn

import typer

from fairqr.base.errors import FairqrError, one_line
from fairqr.cli.commands import CommandList
from fairqr.cli.output import warn

INTERRUPTED = 130
# Some versions of typer bring a click of their own, so this class is found through typer.
_UsageError: type[Exception] = typer.BadParameter.__mro__[1]

_FULL = "make room, or name other folders in FAIRQR_DATA_DIR and FAIRQR_CACHE_DIR"
_CLOSED = "change its rights, or name another place"
_ADVICE = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT, errno.EFBIG), _FULL),
    **dict.fromkeys((errno.EACCES, errno.EPERM, errno.EROFS), _CLOSED),
}
"""What the user can do about an error of the system."""

app = typer.Typer(
    name="fairqr",
    cls=CommandList,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"fairqr {version('fairqr')}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Measure who gets seen in search results, and mend it."""


def main() -> None:
    """Run the command; errors that a user can correct end with one sentence and exit code 2."""
    for stream in (sys.stdout, sys.stderr):
        # No text of a document or a model is worth a traceback on a terminal that cannot show it.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    for argument in sys.argv[1:]:
        # Python stores bytes that are not text as lone surrogates.
        if any("\udc80" <= character <= "\udcff" for character in argument):
            shown = one_line(os.fsencode(argument).decode(errors="backslashreplace"), 60)
            _fail(f"The argument '{shown}' is not valid UTF-8; correct or rename it.")
    try:
        # The framework's own handling would print a usage text around its errors.
        code = app(standalone_mode=False, prog_name="fairqr")
        sys.stdout.flush()
    except FairqrError as error:
        _fail(str(error))
    except _UsageError as error:
        _explain(error)
    except (KeyboardInterrupt, typer.Abort):
        code = INTERRUPTED
    except BrokenPipeError:
        # The reader of our output has gone, as `| head` does; say nothing when Python exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except OSError as error:
        if error.strerror is None:
            raise
        where = f"{error.filename}: " if error.filename else ""
        _fail(f"{where}{error.strerror}; {_ADVICE.get(error.errno or 0, 'check the path')}.")
    if code == INTERRUPTED:
        warn("interrupted")
    sys.exit(code if isinstance(code, int) else 0)


def _fail(sentence: str) -> NoReturn:
    warn(sentence)
    sys.exit(2)


def _explain(error: Any) -> NoReturn:
    """Say in one line what is wrong with the arguments; show the help if there are no arguments."""
    if type(error).__name__ == "NoArgsIsHelpError":
        typer.echo(error.format_message())
        sys.exit(2)
    what = one_line(error.format_message()).rstrip(".")
    help_ = f"'{error.ctx.command_path if error.ctx else 'fairqr'} --help'"
    _fail(f"{what} See {help_}." if what.endswith("?") else f"{what}; see {help_}.")
