"""The command ``fairqr demo``."""

from __future__ import annotations

import shutil
import sys
from typing import TYPE_CHECKING

import typer

from fairqr.base.errors import ModelUnavailableError
from fairqr.base.extras import library
from fairqr.cli.common import run
from fairqr.cli.settings import fetch

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rich.console import RenderableType

    from fairqr.graph.search.context import Context
    from fairqr.graph.search.result import SearchResult

CORPUS = "notables"
ATTRIBUTE = "gender"
GROUP = "female"
K = 10
QUERY = "mathematician"
LOOP_QUERY = "physicist"
"""A query for which what is found alone does not suffice."""

RECORDED = "recorded:notables"

LOOP = """\
The loop, in which a model is asked. Its words were recorded from a large chat model, which wrote
them from its knowledge without seeing this corpus:
"""

OWN_MODEL = """\
With a model of your own, such as one of OpenAI's, to which the query is then sent:

  {0} search "{query}" --attribute {attribute} -k {k} --set ask=always --model openai:gpt-4o-mini
"""

JUDGED = """\
The same search without a model, and with the one on this machine. The judgements that come with
the corpus say which of the {0} documents are relevant."""

NEXT = """\
What to try next: our reading of FAIR-QR; your own Elasticsearch or OpenSearch, which is only
read: describe, search and audit it (with 'fairqr[evaluation]').

  {0} search "chemist" --attribute gender -k 10 --method fair-qr --model recorded:notables
  {0} attach --draft --url http://localhost:9200 --index INDEX -o my.source.yaml
  {0} search "WORDS" --corpus my.source.yaml
  {0} audit --corpus my.source.yaml --queries queries.txt -o audit"""


def demo() -> None:
    """Fetch the two small models (190 MB, once), and search a built-in corpus fairly."""
    from fairqr.base.settings import DEFAULT_MODEL
    from fairqr.base.weights import WEIGHTS, is_pulled
    from fairqr.cli.output import say
    from fairqr.cli.render import result_lines
    from fairqr.graph.search.context import Context

    for name in ("onnxruntime", "tokenizers", "xllamacpp"):
        library(name, "The demo", "local", ModelUnavailableError)
    fetch([weights for weights in WEIGHTS.values() if not is_pulled(weights.name)])
    program = "fairqr" if shutil.which("fairqr") else sys.argv[0]

    # Commands go to stderr, so that stdout begins with who is seen.
    plain = Context.of(attributes=(ATTRIBUTE,), k=K)
    typer.echo(_command(program, QUERY), err=True)
    say([*result_lines(_search(QUERY, plain, DEFAULT_MODEL), {}), ""])

    loop = plain.model_copy(update={"ask": "always", "max_iterations": 1})
    typer.echo(LOOP, err=True)
    typer.echo(_command(program, LOOP_QUERY, RECORDED, loop), err=True)
    with_words = _search(LOOP_QUERY, loop, RECORDED)
    say([*result_lines(with_words, {}), ""])

    without = plain.model_copy(update={"ask": "never"})
    by_model = {
        "no model": _search(LOOP_QUERY, without, DEFAULT_MODEL),
        DEFAULT_MODEL: _search(LOOP_QUERY, loop, DEFAULT_MODEL),
        RECORDED: with_words,
    }
    say([JUDGED.format(K), "", _comparison(by_model), ""])

    typer.echo(OWN_MODEL.format(program, query=LOOP_QUERY, attribute=ATTRIBUTE, k=K))
    typer.echo(NEXT.format(program))


def _search(query: str, context: Context, model: str) -> SearchResult:
    """Search the corpus of the demo."""
    from fairqr.cli.search import SearchRunSettings, run_search

    settings = SearchRunSettings(corpus=CORPUS, model=model)
    result, _ = run(run_search(query, context, settings))
    return result


def _comparison(by_model: Mapping[str, SearchResult]) -> RenderableType:
    """Draw how many of the documents are judged relevant, and who gets seen, by model."""
    from fairqr.cli.output import number, table
    from fairqr.evaluation.collections.finding import find_collection

    collection = find_collection(CORPUS)
    topics = {topic.title: topic.id for topic in collection.topics}
    grades = collection.qrels[topics[LOOP_QUERY]]
    rows = []
    for model, result in by_model.items():
        relevant = sum(grades.get(document.id, 0) > 0 for document in result.ranking)
        attention = result.exposure[ATTRIBUTE][GROUP]
        rows.append((model, f"{relevant} of {len(result.ranking)}", f"{attention:.0%}"))
    heads = ("", number("relevant"), number(f"attention for {GROUP}"))
    return table(heads, rows)


def _command(program: str, query: str, model: str = "", context: Context | None = None) -> str:
    """Return the command that searches in the same way."""
    words = [program, f'search "{query}"', f"--corpus {CORPUS} --attribute {ATTRIBUTE} -k {K}"]
    if model:
        words.append(f"--model {model}")
    if context is not None:
        words.append(f"--set ask={context.ask} --max-iterations {context.max_iterations}")
    return " ".join(words)
