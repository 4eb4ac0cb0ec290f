"""LaMP's seven tasks as data: the questions, the documents, and how answers are judged.

Salemi et al. (2024), LaMP: When Large Language Models Meet Personalization; queries and fields as
in their code. An entry of a task has an ``input``, which is the question in LaMP's words with the
text that it is about, and a ``profile``: the documents that its user wrote or labelled.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from fairqr.agents.attribution.attributor import RAW
from fairqr.base.errors import InputError, one_line
from fairqr.evaluation.lamp.metrics import Accuracy, FourMinusError, Rouge
from fairqr.evaluation.rag.collection import RagTask, Utility

LABELS = (
    "sci-fi",
    "based on a book",
    "comedy",
    "action",
    "twist ending",
    "dystopia",
    "dark comedy",
    "classic",
    "psychology",
    "fantasy",
    "romance",
    "thought-provoking",
    "social commentary",
    "violence",
    "true story",
)
"""The tags of LaMP-2, which is about films."""

# The first versions of the benchmark called news categorisation LaMP-2, and this one LaMP_2M.
_NAME = re.compile(r"lamp[ _-]?(?P<number>[1-7])(?P<rest>(?![0-9]).*)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class LampTask:
    """A task of LaMP.

    Attributes:
        number: 1 to 7; the prompt is ``lamp`` with the number.
        about: The question in a line.
        fields: The fields of a document of a profile, as the prompt's ``item`` has them.
        text: The fields that retrievers match and attributors read.
        marker: The text behind it in an input is the query.
        utility: How good an answer is.
        hypothesis: A template that makes a bare label into a sentence.
        pattern: Its groups are the query, instead of the text behind the marker.
    """

    number: int
    about: str
    fields: tuple[str, ...]
    text: tuple[str, ...] = ("text",)
    marker: str = ":"
    utility: Utility = field(default_factory=Rouge)
    hypothesis: str = RAW
    pattern: re.Pattern[str] | None = None

    @property
    def name(self) -> str:
        """LaMP's name for it, such as ``LaMP-5``."""
        return f"LaMP-{self.number}"

    def query(self, input_: str) -> str:
        """Return the query for retrievers in an input; empty if there is none."""
        if self.pattern is None:
            return input_.partition(self.marker)[2].strip()
        # Titles may have quotation marks in them.
        found = self.pattern.search(input_)
        return " ".join(found.groups()).strip() if found else ""

    def rag_task(self, name: str) -> RagTask:
        """Return the task of a collection that goes by this name."""
        return RagTask(name, self.about, f"lamp{self.number}", self.utility, self.hypothesis)

    def is_gold(self, output: str) -> bool:
        """Return whether an output can be right for any answer."""
        if isinstance(self.utility, Accuracy):
            return self.utility.label(output) is not None
        if isinstance(self.utility, FourMinusError):
            return output.strip() in {"1", "2", "3", "4", "5", "1.0", "2.0", "3.0", "4.0", "5.0"}
        return bool(output.strip())


TASKS = (
    LampTask(
        number=1,
        about="which of two references the author of a paper cites, [1] or [2]",
        fields=("title", "abstract"),
        text=("title", "abstract"),
        marker='[1]: "…" [2]: "…"',
        pattern=re.compile(r'\[1\]:\s*"(.*)"\s*\[2\]:\s*"(.*)"', re.DOTALL),
        utility=Accuracy(),
        hypothesis="Whoever wrote this would cite reference {answer}.",
    ),
    LampTask(
        number=2,
        about="the tag that a user gives to a film, one of 15",
        fields=("description", "tag"),
        text=("description",),
        marker="description:",
        utility=Accuracy(LABELS),
        hypothesis="A fitting tag for this film is “{answer}”.",
    ),
    LampTask(
        number=3,
        about="the rating that a user gives with a review, 1 to 5",
        fields=("text", "score"),
        marker="review:",
        utility=FourMinusError(),
        hypothesis="The reviewer gives this {answer} out of 5.",
    ),
    LampTask(
        number=4,
        about="the headline of a news article",
        fields=("title", "text"),
        text=("title", "text"),
        marker="article:",
    ),
    LampTask(
        number=5,
        about="the title of a paper from its abstract",
        fields=("title", "abstract"),
        text=("title", "abstract"),
    ),
    LampTask(
        number=6,
        about="the subject of an e-mail",
        fields=("title", "text"),
    ),
    LampTask(
        number=7,
        about="a tweet in other words",
        fields=("text",),
    ),
)


def lamp_task(name: str) -> tuple[LampTask, str]:
    """Return a task by its name in LaMP's files, and the name of the collection.

    Args:
        name: Such as ``LaMP_5``, ``lamp-5`` or ``LaMP_2M``. A longer name, such as
            ``LaMP_5_like``, is a set of that shape: it is read alike and keeps its own name.

    Raises:
        InputError: No task has that name.
    """
    found = _NAME.fullmatch(name.strip())
    rest = found["rest"].upper() if found else ""
    if found is None or (found["number"], rest) == ("2", "N"):
        what = "an older task, on news" if found else "no task of LaMP"
        raise InputError(
            f"'{one_line(name)}' is {what}; name one of {', '.join(task.name for task in TASKS)}."
        )
    task = TASKS[int(found["number"]) - 1]
    official = not rest or (task.number, rest) == (2, "M")
    return task, task.name if official else name.strip()
