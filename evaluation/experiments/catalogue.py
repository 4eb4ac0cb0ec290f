"""The experiments of all kinds: those that come with fairqr, and files of the user's own."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from fairqr.base.errors import InputError, first_problem, one_line
from fairqr.evaluation.experiments.specification import Experiment
from fairqr.evaluation.probes.specification import (
    LISTWISE_KIND,
    LORA_KIND,
    PAIRWISE_KIND,
    ListwiseExperiment,
    LoraExperiment,
    PairwiseExperiment,
)
from fairqr.evaluation.rag.specification import FairRagExperiment

__all__ = [
    "KINDS",
    "SHIPPED",
    "AnyExperiment",
    "find_experiment",
    "kind_of_file",
    "kind_of_folder",
    "load_experiment",
    "title_of",
    "workers_of_file",
]

FILES = Path(__file__).parent / "files"
SHIPPED = (
    "fair_qr_table",
    "rerank_ablation",
    "iterations",
    "prompts",
    "retrievers",
    "fair_rag",
    "fair_rag_small",
    "llm_listwise",
    "llm_listwise_small",
    "window_size",
    "window_size_small",
    "llm_pairwise",
    "llm_pairwise_small",
    "lora",
    "lora_small",
)
"""The experiments that come with fairqr, in order of their names' meaning."""

AnyExperiment = (
    Experiment | FairRagExperiment | ListwiseExperiment | PairwiseExperiment | LoraExperiment
)
E = TypeVar("E", bound=BaseModel)

SEARCH = "search"
WORKERS = "workers"

KINDS: Mapping[str, type[AnyExperiment]] = {
    SEARCH: Experiment,
    "fair_rag": FairRagExperiment,
    LISTWISE_KIND: ListwiseExperiment,
    PAIRWISE_KIND: PairwiseExperiment,
    LORA_KIND: LoraExperiment,
}
"""What a file's ``kind`` stands for; one without it is ``search``."""


def find_experiment(name: str) -> Path:
    """Return the file of an experiment: one that comes with fairqr, or a path.

    Raises:
        InputError: There is none.
    """
    if name in SHIPPED:
        return FILES / f"{name}.yaml"
    path = Path(name)
    if not path.is_file():
        raise InputError(
            f"There is no experiment '{one_line(name)}'; name a YAML file, or one of "
            f"{', '.join(SHIPPED)}."
        )
    return path


def kind_of_file(path: Path) -> str:
    """Return the kind of the experiment that a file describes, one of :data:`KINDS`.

    Raises:
        InputError: The file is no experiment.
    """
    return _kind(path, _read(path))


def workers_of_file(path: Path) -> str | int | None:
    """Return who is to do the work, as a file says it; None where it says nothing.

    It is no part of the experiment, since results are the same.

    Raises:
        InputError: The file is no experiment, or says what is neither a number nor a text.
    """
    said = _read(path).get(WORKERS)
    if isinstance(said, bool) or not isinstance(said, str | int | None):
        raise InputError(
            f"The workers of the experiment {path} are neither a number nor a text; write 4, ray, "
            "ray://local or ray://HOST:PORT."
        )
    return said


def load_experiment(path: Path, kind: type[E], changes: Mapping[str, Any] | None = None) -> E:
    """Read an experiment.

    Args:
        path: The YAML file.
        kind: One of the values of :data:`KINDS`.
        changes: Values instead of the file's; a mapping is laid over the file's.

    Raises:
        InputError: The file is no experiment of this kind; the message says where and why.
    """
    data = _read(path)
    if KINDS[_kind(path, data)] is not kind:
        raise InputError(f"The experiment {path} is of the kind '{_kind(path, data)}'.")
    data.pop(WORKERS, None)
    for name, value in (changes or {}).items():
        before = data.get(name)
        if isinstance(value, Mapping) and isinstance(before, Mapping):
            value = {**before, **value}
        data[name] = value
    try:
        return kind.model_validate(data)
    except ValidationError as error:
        where, reason = first_problem(error)
        at = f" at {where}" if where else ""
        raise InputError(f"The experiment {path} is wrong{at}: {one_line(reason)}.") from None


def title_of(path: Path) -> str:
    """Return the title of an experiment of any kind.

    Raises:
        InputError: The file is no experiment.
    """
    return load_experiment(path, KINDS[kind_of_file(path)]).title


def kind_of_folder(folder: Path) -> str:
    """Return the kind of the experiment that was run in a folder; ``search`` if it cannot be told.

    What is wrong with the folder is said by what opens it then.
    """
    try:
        manifest = json.loads((folder / "experiment.json").read_bytes())
        kind = manifest["experiment"].get("kind", SEARCH)
    except (OSError, ValueError, RecursionError, LookupError, TypeError, AttributeError):
        return SEARCH
    return kind if isinstance(kind, str) and kind in KINDS else SEARCH


def _read(path: Path) -> dict[str, Any]:
    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"The experiment {path} cannot be read ({one_line(error)}).") from None
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 1}" if mark else ""
        raise InputError(f"The experiment {path}{where} is not valid YAML; mend it.") from None
    if not isinstance(data, dict):
        raise InputError(f"The experiment {path} is no mapping of names to values; mend it.")
    return data


def _kind(path: Path, data: Mapping[str, Any]) -> str:
    kind = data.get("kind", SEARCH)
    if not isinstance(kind, str) or kind not in KINDS:
        raise InputError(
            f"The experiment {path} is of the unknown kind '{one_line(kind)}'; "
            f"write one of {', '.join(KINDS)}."
        )
    return kind
