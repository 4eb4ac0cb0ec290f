"""A tiny BERT that tells entailment from the rest by a toy rule, made and saved on the spot.

A premise with ``gold`` entails anything, one with ``mud`` contradicts it, any other is neutral,
whatever the hypothesis is.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from tests.unit.agents.ranking.tiny_models import save_bert

LABELS = ("CONTRADICTION", "NEUTRAL", "ENTAILMENT")
STEPS = 250
WORDS = "gold mud river stone tree cloud the a of was seen near old new house road said they"


def _examples(stream: np.random.Generator, number: int) -> tuple[list[str], list[str], list[int]]:
    """Premises, hypotheses and labels by the rule; what the hypothesis has does not count."""
    plain = WORDS.split()[2:]
    telling = {0: "mud", 2: "gold"}
    premises = []
    hypotheses = []
    labels = []
    for _ in range(number):
        premise = list(stream.choice(plain, stream.integers(1, 12)))
        hypothesis = list(stream.choice(plain, 3))
        label = int(stream.integers(3))
        if word := telling.get(label):
            premise[stream.integers(len(premise))] = word
        if decoy := telling.get(int(stream.integers(3))):
            hypothesis[stream.integers(3)] = decoy
        premises.append(" ".join(premise))
        hypotheses.append(" ".join(hypothesis))
        labels.append(label)
    return premises, hypotheses, labels


def save_tiny_nli(folder: Path) -> Path:
    """Make, train and save the model with its tokenizer (3 s)."""
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    save_bert(
        folder,
        "BertForSequenceClassification",
        WORDS,
        **{"hidden_size": 32, "intermediate_size": 64, "initializer_range": 0.02},
        **{"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0},
        id2label=dict(enumerate(LABELS)),
        label2id={label: index for index, label in enumerate(LABELS)},
    )
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForSequenceClassification.from_pretrained(folder).train()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # several would wait for each other over sums this small
    with torch.random.fork_rng():
        torch.manual_seed(0)
        optimiser = torch.optim.Adam(model.parameters(), lr=2e-3)
        stream = np.random.default_rng(0)
        for _ in range(STEPS):
            premises, hypotheses, labels = _examples(stream, 32)
            inputs = tokenizer(premises, hypotheses, padding=True, return_tensors="pt")
            optimiser.zero_grad()
            loss = model(**inputs, labels=torch.tensor(labels)).loss
            loss.backward()
            optimiser.step()
    torch.set_num_threads(threads)
    model.eval().save_pretrained(folder)
    return folder


def relabelled(source: Path, folder: Path, order: Sequence[int], names: Sequence[str]) -> Path:
    """Save the model with its outputs in another order, or some of them, and other names.

    Args:
        source: A saved model.
        folder: Where.
        order: Which of its outputs stand where.
        names: Of the outputs then.
    """
    import torch
    from transformers import AutoModelForSequenceClassification

    shutil.copytree(source, folder)
    model = AutoModelForSequenceClassification.from_pretrained(source)
    old = model.classifier
    new = torch.nn.Linear(old.in_features, len(order))
    with torch.no_grad():
        new.weight.copy_(old.weight[list(order)])
        new.bias.copy_(old.bias[list(order)])
    model.classifier = new
    model.config.id2label = dict(enumerate(names))
    model.config.label2id = {name: index for index, name in enumerate(names)}
    model.save_pretrained(folder)
    return folder


_made: dict[str, Path] = {}


@pytest.fixture(scope="session")
def tiny_nli(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The saved model, made once in all; not to be changed."""
    if "tiny" not in _made:
        _made["tiny"] = save_tiny_nli(tmp_path_factory.mktemp("nli") / "tiny")
    return _made["tiny"]
