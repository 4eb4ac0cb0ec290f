"""What a run that probes a model is asked to do."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from fairqr.agents.ranking.askers import Asker
from fairqr.agents.ranking.base import Shown
from fairqr.base.errors import InputError
from fairqr.graph.search.context import Context, Method, WrittenTarget, checked_context
from fairqr.graph.search.ranking_context import require_step
from fairqr.retrieval.dimension import factors_of
from fairqr.retrieval.target import Target

__all__ = ["ProbeContext", "ProbeKind", "ProbeSettings", "probe_context"]

ProbeKind = Literal["pairwise", "listwise"]


class ProbeSettings(BaseModel):
    """Whether the model that is asked to rank leans to one side, on the documents of a result.

    All of these documents count as alike relevant: nobody has judged them for this query.

    Attributes:
        attribute: Of the corpus.
        protected: Which of its groups count as protected, as
            :func:`fairqr.retrieval.sides.parse_sides` takes it: ``female``, ``not Europe``.
        words: What the protected side and the other are called in prompts; their groups where None.
        kinds: What is asked: which of two documents comes first, in both orders (``pairwise``), and
            how it orders them all (``listwise``).
        depth: How many of the best documents of the result take part; all of them where None.
        pairs: At most so many; each document is in one pair.
        asker: Who the pairwise question is asked for; ``neutral`` for nobody in particular.
        askers: Who lists are ordered for.
        by: How pairs are asked: by the ``probabilities`` of the two labels where the model tells
            them, or by its ``reply``.
        shown: What the model reads of a document.
        length: At most so many characters of a document are shown.
        window, step: Of lists, in documents; the step is half of the window where None.
        context: Tokens that the model reads and writes at once, where that is known.
        seed: Of the pairs, of the order in which lists are given, and of the figures' intervals.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    attribute: str
    protected: str
    words: tuple[str, str] | None = None
    kinds: tuple[ProbeKind, ...] = ("pairwise", "listwise")
    depth: int | None = Field(None, ge=2, le=1000)
    pairs: int = Field(50, ge=1, le=1000)
    asker: Asker = "neutral"
    askers: tuple[Asker, ...] = ("neutral", "unprotected", "protected")
    by: Literal["probabilities", "reply"] = "probabilities"
    shown: Shown = "title"
    length: int = Field(2000, ge=1, le=100_000)
    window: int = Field(20, ge=2, le=1000)
    step: int | None = Field(None, ge=1, le=1000)
    context: int | None = Field(None, ge=1)
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0

    @field_validator("kinds", "askers")
    @classmethod
    def _are_some_once(cls, listed: tuple[str, ...]) -> tuple[str, ...]:
        if not listed or len(set(listed)) < len(listed):
            raise ValueError("name at least one, and each once")
        return listed

    @model_validator(mode="after")
    def _step_is_within_the_window(self) -> ProbeSettings:
        require_step(self.window, self.step)
        return self


class ProbeContext(Context):
    """What a run that probes is asked to do: the search, and what is asked about its ranking.

    The method is ``plain`` where nothing else is said, and exposure is measured by the attribute of
    the probe where no attributes are named. No probe reads the target, so that of the search is
    uniform, which needs nothing of the corpus.

    Attributes:
        probe: What is asked.
    """

    method: Method = "plain"
    target: WrittenTarget = Target.parse("uniform:1")
    probe: ProbeSettings

    @model_validator(mode="after")
    def _probed_attribute_is_measured(self) -> ProbeContext:
        if not self.attributes and not self.intersect:
            object.__setattr__(self, "attributes", (self.probe.attribute,))
        elif self.attributes and not any(
            self.probe.attribute in factors_of(name) for name in self.attributes
        ):
            raise ValueError(
                f"the attribute of the probe, '{self.probe.attribute}', is not among 'attributes'; "
                "add it"
            )
        return self


def probe_context(**values: object) -> ProbeContext:
    """Return the context of a run that probes, from values that are given one by one.

    Args:
        values: Those of :class:`ProbeSettings`, of which ``attribute`` and ``protected`` are
            needed, and of :class:`ProbeContext`. ``depth`` is how many of the ``k`` documents take
            part, and ``seed`` that of the probe.

    Raises:
        InputError: One is wrong; the message names it and what is allowed.
    """
    if "probe" in values:
        raise InputError("The parameters of a probe are given one by one, without 'probe'.")
    search = {name: value for name, value in values.items() if name not in _SETTINGS}
    given = {name: values[name] for name in _SETTINGS if values.get(name) is not None}
    return checked_context(ProbeContext, {**search, "probe": given})


_SETTINGS = tuple(ProbeSettings.model_fields)
