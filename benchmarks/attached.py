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
    arguments, options = parser.parse_known_args()
    name = f"{arguments.name}-elasticsearch"
    try:
        corpus = find_collection(arguments.name).corpus
    except FairqrError as error:
        parser.error(str(error))
    _detach_leftover(name)
    with on_elasticsearch(name, corpus) as (_, source):
        Catalog().attach(source)
        try:
            # The experiment takes all documents, as the server does.
            count = sum(1 for _ in corpus.documents())
            options += ["--set", f"documents={count}", "--report"]
            command = ["experiment", "run", arguments.experiment, "--collection", arguments.name]
            run = subprocess.run([sys.executable, "-m", "fairqr", *command, *options])
            return run.returncode
        finally:
            Catalog().detach(name)


def _detach_leftover(name: str) -> None:
    """Detach the source of an earlier run that was killed: its file is a temporary one."""
    file = Catalog().sources().get(name)
    if file is not None and file.is_relative_to(tempfile.gettempdir()):
        Catalog().detach(name)


if __name__ == "__main__":
    sys.exit(main())
