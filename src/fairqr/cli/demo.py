"""The command ``fairqr demo``."""

from __future__ import annotations

import shutil
import sys
from typing import Any

import typer

from fairqr.base.errors import ModelUnavailableError
from fairqr.base.extras import library
from fairqr.cli.common import run
from fairqr.cli.settings import fetch

QUERY, CORPUS, ATTRIBUTE, K = "mathematician", "notables", "gender", 10

NEXT = """\
What to try next: a search of several rounds; your own Elasticsearch or OpenSearch, which is only
read: describe, search and audit it (with 'fairqr[evaluation]').

  {0} search "astronomer" --attribute gender -k 10 --method fair-qr
  {0} attach --draft --url http://localhost:9200 --index INDEX -o my.source.yaml
  {0} search "WORDS" --corpus my.source.yaml
  {0} audit --corpus my.source.yaml --queries queries.txt -o audit"""


def demo() -> None:
    """Fetch the two small models (190 MB, once), and search a built-in corpus fairly."""
    from fairqr.base.settings import DEFAULT_MODEL
    from fairqr.base.weights import WEIGHTS, is_pulled
    from fairqr.cli.output import say
    from fairqr.cli.render import result_lines
    from fairqr.cli.search import SearchRunSettings, searched
    from fairqr.graph.search.context import Context

    for name in ("onnxruntime", "tokenizers", "xllamacpp"):
        library(name, "The demo", "local", ModelUnavailableError)
    fetch([weights for weights in WEIGHTS.values() if not is_pulled(weights.name)])
    called = "fairqr" if shutil.which("fairqr") else sys.argv[0]
    settings = SearchRunSettings(corpus=CORPUS, model=DEFAULT_MODEL)
    command = f'{called} search "{QUERY}" --corpus {CORPUS} --attribute {ATTRIBUTE} -k {K}'
    loop: dict[str, Any] = {"method": "fair-qr", "max_iterations": 1}
    for more, said in (({}, ""), (loop, "FAIR-QR's loop, in which a model refines:\n")):
        options = [f" --{name.replace('_', '-')} {value}" for name, value in more.items()]
        typer.echo("".join([said, command, *options]), err=True)  # stdout begins with who is seen
        asked = Context.of(attributes=(ATTRIBUTE,), k=K, **more)
        say([*result_lines(*run(searched(QUERY, asked, settings))), ""])
    typer.echo(NEXT.format(called))
