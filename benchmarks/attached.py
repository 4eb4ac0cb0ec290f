"""What the fair step brings in front of a real Elasticsearch, beside the embedded index.

``python -m benchmarks.attached notables -o FOLDER`` starts a server of the tests, puts the
documents of a collection into it, attaches it as ``notables-elasticsearch``, and runs
``fairqr experiment run parts``, whose systems on Elasticsearch search a corpus of that name.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

from fairqr.evaluation.collections.finding import find_collection
from fairqr.retrieval.sources.catalog import Catalog
from tests.integration.elasticsearch_server import running_server
from tests.integration.filled_elasticsearch import fill, write_source

FAIRQR = Path(sys.executable).with_name("fairqr")


def main() -> int:
    """Run the experiment, and return its exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", help="of a collection")
    parser.add_argument("-o", "--output", required=True, help="the folder of the experiment")
    given = parser.parse_args()
    with ExitStack() as stack:
        server = stack.enter_context(running_server())
        corpus = find_collection(given.name).corpus
        source = fill(stack, server.url, f"{given.name}-elasticsearch", corpus)
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        Catalog().attach(write_source(source, folder))
        stack.callback(Catalog().detach, source.name)
        command = "experiment", "run", "parts", "--collection", given.name, "--report"
        return subprocess.run([FAIRQR, *command, "-o", given.output]).returncode


if __name__ == "__main__":
    sys.exit(main())
