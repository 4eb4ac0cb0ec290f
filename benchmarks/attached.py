"""What the fair step brings in front of a real Elasticsearch, beside the embedded index.

``python -m benchmarks.attached notables -o FOLDER`` starts a server of the tests, puts the
documents of a collection into it, attaches it as ``notables-elasticsearch``, and runs
``fairqr experiment run parts``, or another ``--experiment`` whose systems on Elasticsearch search a
corpus of that name. More options, such as ``-o`` and ``--small``, are that command's.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile

from benchmarks.measuring import on_elasticsearch
from fairqr.base.errors import FairqrError
from fairqr.evaluation.collections.finding import find_collection
from fairqr.retrieval.sources.catalog import Catalog


def main() -> int:
    """Run the experiment, and return its exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", help="of a collection")
    parser.add_argument("--experiment", default="parts", help="such as retrievers")
    given, more = parser.parse_known_args()
    name = f"{given.name}-elasticsearch"
    try:
        corpus = find_collection(given.name).corpus
    except FairqrError as error:
        parser.error(str(error))
    _forget_what_was_left(name)
    with on_elasticsearch(name, corpus) as (_, source):
        Catalog().attach(source)
        try:
            # All documents, which the server has too.
            more += ["--set", f"documents={sum(1 for _ in corpus.documents())}", "--report"]
            command = "experiment", "run", given.experiment, "--collection", given.name, *more
            return subprocess.run([sys.executable, "-m", "fairqr", *command]).returncode
        finally:
            Catalog().detach(name)


def _forget_what_was_left(name: str) -> None:
    """Detach what a run that was killed left attached: its file is a temporary one."""
    left = Catalog().sources().get(name)
    if left is not None and left.is_relative_to(tempfile.gettempdir()):
        Catalog().detach(name)


if __name__ == "__main__":
    sys.exit(main())
