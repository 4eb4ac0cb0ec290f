"""Entries of the seven tasks in the shape of LaMP's files, with words of these tests."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

Data = dict[str, Any]

ENTRIES: dict[int, Data] = {
    1: {
        "input": 'For an author who has written the paper with the title "Own "quoted" work", '
        "which reference is related? Just answer with [1] or [2] without explanation. "
        '[1]: "Fair "ranking" of papers" [2]: "Bread"',
        "profile": [{"id": "10", "title": "Exposure", "abstract": "Of papers."}],
    },
    2: {
        "input": "Which tag? tags: [comedy, action] description: A clown: robs a bank.",
        "profile": [{"id": "20", "description": "A clown dances.", "tag": "comedy"}],
    },
    3: {
        "input": "What is the score of this review? review: It broke: at once.",
        "profile": [{"id": "30", "text": "Very good.", "score": "5"}],
    },
    4: {
        "input": "Generate a headline for the following article: The council: met.",
        "profile": [{"id": "40", "title": "Council", "text": "It met before."}],
    },
    5: {
        "input": "Generate a title for the following abstract of a paper: We study: merit.",
        "profile": [{"id": "50", "title": "Merit", "abstract": "We measure it."}],
    },
    6: {
        "input": "Generate a subject for the following email: Dear all: lunch?",
        "profile": [{"id": "60", "title": "Dinner", "text": "Shall we?"}],
    },
    7: {
        "input": "Paraphrase the following tweet without explanation: rain: again",
        "profile": [{"id": "70", "text": "sun, finally"}],
    },
}
GOLDS = {1: "[1]", 2: "comedy", 3: "1", 4: "Council meets", 5: "Merit", 6: "Lunch", 7: "Wet"}
QUERIES = {
    1: 'Fair "ranking" of papers Bread',
    2: "A clown: robs a bank.",
    3: "It broke: at once.",
    4: "The council: met.",
    5: "We study: merit.",
    6: "Dear all: lunch?",
    7: "rain: again",
}
TEXTS = {
    1: "Exposure\nOf papers.",
    2: "A clown dances.",
    3: "Very good.",
    4: "Council\nIt met before.",
    5: "Merit\nWe measure it.",
    6: "Shall we?",
    7: "sun, finally",
}


def write_set(
    folder: Path, questions: object, outputs: object, prefix: str = "", packed: bool = False
) -> Path:
    """Write questions and outputs, each as JSON or as it is where it is bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in (("questions", questions), ("outputs", outputs)):
        content = data if isinstance(data, bytes) else json.dumps(data).encode()
        if packed:
            (folder / f"{prefix}{name}.json.gz").write_bytes(gzip.compress(content))
        else:
            (folder / f"{prefix}{name}.json").write_bytes(content)
    return folder


def golds_of(task: str | None, golds: dict[str, Any]) -> Data:
    """Return a file of outputs."""
    listed = [{"id": id_, "output": output} for id_, output in golds.items()]
    return {"golds": listed} if task is None else {"task": task, "golds": listed}
