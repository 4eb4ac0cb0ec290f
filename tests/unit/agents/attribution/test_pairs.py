"""Labelled pairs: reading them, and making them from the facts on notable people."""

from __future__ import annotations

from pathlib import Path

import pytest

from fairqr.agents.attribution.checking import read_pairs
from fairqr.agents.attribution.notables_pairs import notables_pairs
from fairqr.base.errors import InputError
from fairqr.retrieval.sources.corpus import BUILT_IN, find_corpus

GOOD = '{"premise": "a", "hypothesis": "b", "entailed": true}'


class TestReading:
    @pytest.mark.parametrize(
        ("line", "words"),
        [
            ("{", "line 3: Invalid JSON"),
            ('"text"', "line 3: Input should be an object"),
            ('{"premise": "a", "hypothesis": "b"}', "line 3: entailed: Field required"),
            (GOOD.replace("true", '"yes"'), "line 3: entailed: Input should be a valid boolean"),
            (GOOD.replace("true", "1"), "line 3: entailed: Input should be a valid boolean"),
            (GOOD.replace('"a"', "5"), "line 3: premise: Input should be a valid string"),
            ("\udcff", "line 3: "),
        ],
    )
    def test_a_line_that_is_no_pair_is_named(self, tmp_path: Path, line: str, words: str) -> None:
        """With what is wrong and what it should be; blank lines count as lines."""
        path = tmp_path / "pairs.jsonl"
        path.write_bytes(f"{GOOD}\n\n{line}\n{GOOD}\n".encode(errors="surrogateescape"))
        with pytest.raises(InputError) as refused:
            read_pairs(path)
        assert words in str(refused.value)
        assert '{"premise": "…"' in str(refused.value)
        assert "\n" not in str(refused.value)


class TestNotables:
    def test_the_same_seed_gives_the_same_pairs(self) -> None:
        """Half of them entailed, each text once, and none that is asked about itself."""
        pairs = notables_pairs(120, seed=3)
        assert pairs == notables_pairs(120, seed=3)
        assert pairs != notables_pairs(120, seed=4)
        assert [pair.entailed for pair in pairs] == [True, False] * 60
        assert len({pair.premise for pair in pairs}) == 120
        assert {pair.hypothesis.split(" was ")[-1].split(" is ")[-1][:5] for pair in pairs} == {
            "born ",
            "known",
        }

    def test_labels_agree_with_the_facts(self) -> None:
        """True sentences are facts of the person; others exchange one part of them."""
        documents = {d.text: d for d in find_corpus(BUILT_IN["notables"]).documents()}
        exchanged = {"name": 0, "value": 0}
        for pair in notables_pairs(400, seed=1):
            document = documents[pair.premise]
            born = " was born in " in pair.hypothesis
            name, value = pair.hypothesis.rstrip(".").split(
                " was born in " if born else " is known as ", 1
            )
            value = value.removeprefix("the ") if born else value.split(" ", 1)[1]
            fact = document.fields["country" if born else "occupation"]
            if pair.entailed:
                assert (name, value) == (document.title, fact)
                assert fact in pair.premise
            elif name == document.title:
                exchanged["value"] += 1
                assert value != fact
                assert not born or value not in pair.premise
            else:
                exchanged["name"] += 1
                assert value == fact
                assert name not in pair.premise
        assert sum(exchanged.values()) == 200
        assert min(exchanged.values()) > 40

    def test_how_many_there_can_be(self) -> None:
        """At least one, and no more than the corpus has."""
        assert len(notables_pairs(1)) == 1
        with pytest.raises(InputError, match="at least 1, not 0"):
            notables_pairs(0)
        with pytest.raises(InputError, match="ask for fewer than 50,000 pairs"):
            notables_pairs(50_000)
