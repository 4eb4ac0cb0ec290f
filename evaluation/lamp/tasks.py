"""LaMP's seven tasks: the questions, the documents, and how answers are judged.

An entry of a task has an ``input``, which is the question in LaMP's words with the text that it is
about, and a ``profile``: the documents that its user wrote or labelled.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, TypeAdapter

from fairqr.base.errors import InputError, one_line
from fairqr.base.yaml_file import load_yaml
from fairqr.evaluation.lamp import metrics
from fairqr.evaluation.rag.collection import Utility


class LampTask(BaseModel, frozen=True, extra="forbid"):
    """A task of LaMP.

    Attributes:
        number: 1 to 7; the prompt is ``lamp`` with the number.
        about: The question in a line.
        fields: The fields of a document of a profile, as the prompt's ``item`` has them.
        text: The fields that retrievers match and attributors read.
        marker: The text behind it in an input is the query.
        pattern: Its groups are the query, instead of the text behind the marker.
        judged: By which utility answers are judged.
        labels: What there is to choose from, if answers are judged by label; ``[1]`` and ``[2]``
            if it is empty.
    """

    number: int
    about: str
    fields: tuple[str, ...]
    text: tuple[str, ...]
    marker: str = ":"
    pattern: re.Pattern[str] | None = None
    judged: Literal["label", "rating", "words"] = "words"
    labels: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """LaMP's name for it, such as ``LaMP-5``."""
        return f"LaMP-{self.number}"

    @property
    def label_of(self) -> Callable[[str], str | None]:
        """What returns the label that a text names."""
        if not self.labels:
            return metrics.citation_label
        return partial(metrics.tag_label, labels=self.labels)

    @property
    def utility(self) -> Utility:
        """How good an answer is."""
        if self.judged == "label":
            return Utility("accuracy", partial(metrics.accuracy, label_of=self.label_of))
        return metrics.ROUGE_L if self.judged == "words" else metrics.FOUR_MINUS_ERROR

    def query(self, input_: str) -> str:
        """Return the query for retrievers in an input; empty if there is none."""
        if self.pattern is None:
            return input_.partition(self.marker)[2].strip()
        # Titles may have quotation marks in them.
        match = self.pattern.search(input_)
        return " ".join(match.groups()).strip() if match else ""

    def is_gold(self, output: str) -> bool:
        """Return whether an output can be right for any answer."""
        if self.judged == "label":
            return self.label_of(output) is not None
        if self.judged == "rating":
            return re.fullmatch(r"[1-5](\.0)?", output.strip()) is not None
        return bool(output.strip())


TASKS = TypeAdapter(tuple[LampTask, ...]).validate_python(
    load_yaml(Path(__file__).with_name("tasks.yaml"), "tasks")
)


def lamp_task(name: str) -> tuple[LampTask, str]:
    """Return a task by its name in LaMP's files, and the name of the collection.

    Args:
        name: Such as ``LaMP_5``, ``lamp-5`` or ``LaMP_2M``. A longer name, such as
            ``LaMP_5_like``, is a set of that shape: it is read alike and keeps its own name.

    Raises:
        InputError: No task has that name.
    """
    # The first versions of LaMP called news categorisation LaMP-2, and then LaMP_2N; films LaMP_2M.
    match = re.fullmatch(r"(?i)lamp[ _-]?([1-7])((?![0-9]).*)", name.strip())
    version = match[1] + match[2].upper() if match else ""
    if match is None or version == "2N":
        problem = "an older task, on news" if match else "no task of LaMP"
        names = ", ".join(task.name for task in TASKS)
        raise InputError(f"'{one_line(name)}' is {problem}; name one of {names}.")
    task = TASKS[int(match[1]) - 1]
    is_official = not match[2] or version == "2M"
    return task, task.name if is_official else name.strip()
