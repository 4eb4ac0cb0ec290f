"""The help of every command, and how the command answers to wrong arguments."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer

from fairqr.cli.main import SECTIONS, app
from fairqr.graph.search.context import METHODS
from fairqr.retrieval.rerankers.registry import RERANKERS

Fairqr = Callable[..., Any]
HEAVY = {"elasticsearch", "fastmcp", "langchain", "langchain_core", "langgraph", "mcp", "openai"}
HEAVY |= {"tantivy"}
SCRIPT = """
import contextlib, io, sys
from fairqr.cli.main import main

for arguments in sys.argv[1].split(","):
    sys.argv = ["fairqr", *arguments.split(), "--help"]
    with contextlib.redirect_stdout(io.StringIO()) as shown, contextlib.suppress(SystemExit):
        main()
    assert "Usage: fairqr" in shown.getvalue(), arguments
print(*sorted({name.split(".")[0] for name in sys.modules}))
"""


def commands() -> list[str]:
    """Every command, and every command below another."""
    group: Any = typer.main.get_command(app)
    names = [""]
    for name, command in group.commands.items():
        names.append(name)
        names += [f"{name} {below}" for below in getattr(command, "commands", {})]
    return names


@pytest.mark.promise("command")
def test_the_help_lists_each_command_in_its_section(fairqr: Fairqr) -> None:
    """`fairqr --help` lists each command in one line of its section, within 80 columns."""
    text = fairqr("--help").stdout
    assert max(map(len, text.splitlines())) <= 80

    for title, entries in SECTIONS.items():
        section = text.partition(f"\n{title}:\n")[2].partition("\n\n")[0].splitlines()
        assert [line.split()[0] for line in section] == list(entries)


def test_the_help_of_no_command_loads_what_is_slow() -> None:
    """None of the large libraries is imported to print a help text."""
    command = [sys.executable, "-c", SCRIPT, ",".join(commands())]
    ended = subprocess.run(command, capture_output=True, text=True, check=True)
    assert not HEAVY & set(ended.stdout.split())


def test_each_method_is_explained_without_an_index(fairqr: Fairqr, tmp_path: Path) -> None:
    """Nothing is opened or made for it."""
    code, text, errors = fairqr("search", "--method", "help")
    assert (code, errors) == (0, "")

    lines = text.partition("Methods (--method):\n")[2].partition("\n\n")[0].splitlines()
    explained = [line.strip() for line in lines if not line.startswith("      ")]
    assert explained == [f"{name}: {strategy.about}" for name, strategy in METHODS.items()]
    assert all(f"  {name}: " in text for name in RERANKERS)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "command", [[], ["search"], ["models", "measure"]], ids=["fairqr", "search", "models measure"]
)
def test_help_is_asked_for_as_one_is_used_to(fairqr: Fairqr, command: list[str]) -> None:
    expected = fairqr(*command, "--help")
    assert expected.code == 0
    assert fairqr(*command, "-h") == expected
    assert fairqr("help", *command) == expected


def test_a_shell_completes_commands_and_options(
    fairqr: Fairqr, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the script does that --install-completion writes for bash."""
    monkeypatch.setenv("_FAIRQR_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", "fairqr search --tar")
    monkeypatch.setenv("COMP_CWORD", "2")
    _, completions, _ = fairqr()

    assert completions.split() == ["--target"]


@pytest.mark.promise("command")
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["answr"], "No such command 'answr'. Did you mean 'answer'? See 'fairqr --help'."),
        (["search"], "Missing argument 'QUERY'; see 'fairqr search --help'."),
        (["search", "x", "-k", "many"], "'k' is wrong: Input should be a valid integer"),
        (["search", "x", "--nonsense"], "No such option: --nonsense"),
        (["answer", "x", "--samples", "0"], "'answer.samples' is wrong"),
        (["answer", "x", "--set", "answer.hypothesis=It is."], "write {answer} in it once"),
        (["answer", "x", "--model", "feedback"], "'feedback' names no provider"),
        (["answer", "x", "--model", "seq2seq:x", "--method", "fairqr"], "with a chat model"),
        (["answer", "x", "--model", "openai:x", "--attributor", "y"], "no attributor 'y'"),
        (["keys", "revoke", "0123"], "There is no access key '0123'; see 'fairqr keys list'."),
        (["keys", "create", "a", "--scope", "all"], "There is no scope 'all'"),
        (["keys", "create", "a\nb"], "one line of 1 to 100 characters"),
        (["keys", "list", "--database", "mysql://a:s3cret@b"], "write sqlite:///path"),
        (["dataset", "info", "x"], "There is no collection 'x'; there are notables"),
        (["dataset", "import", "x", "a", "--name", "b"], "There is no loader 'x'; there are"),
    ],
    ids=[
        "command",
        "no query",
        "number",
        "option",
        "range",
        "hypothesis",
        "no provider",
        "no chat model",
        "attributor",
        "key",
        "scope",
        "name of a key",
        "database",
        "collection",
        "loader",
    ],
)
def test_wrong_arguments_are_one_line(
    monkeypatch: pytest.MonkeyPatch, fairqr: Fairqr, arguments: list[str], words: str
) -> None:
    """Wrong arguments end with one sentence on stderr and exit code 2, without a traceback and
    before anything is spent.
    """
    monkeypatch.setenv("OPENAI_API_KEY", "sk-none")
    assert words in fairqr(*arguments).complaint()


def test_a_terminal_that_cannot_show_a_character_gets_its_escape(tmp_path: Path) -> None:
    """No title of a document is worth a traceback."""
    fairqr = Path(sys.executable).with_name("fairqr")
    environment = {
        "PYTHONIOENCODING": "latin-1",
        "PYTHONUTF8": "0",
        "FAIRQR_DATA_DIR": str(tmp_path),
        "FAIRQR_CONFIG": os.devnull,
    }
    command = [fairqr, "index", "info", "š"]
    ended = subprocess.run(command, capture_output=True, env=environment, check=False)

    assert ended.returncode == 2
    assert b"Traceback" not in ended.stderr
    assert rb"'\u0161'" in ended.stderr


def test_the_demo_says_first_what_is_missing(
    monkeypatch: pytest.MonkeyPatch, fairqr: Fairqr, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "xllamacpp", None)
    code, stdout, stderr = fairqr("demo")
    assert (code, stdout) == (2, "")
    assert "The demo needs xllamacpp; install it with: pip install 'fairqr[local]'" in stderr
    assert list(tmp_path.iterdir()) == []
