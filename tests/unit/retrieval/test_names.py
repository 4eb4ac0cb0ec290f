"""Which texts hold a name whole."""

from __future__ import annotations

from fairqr.retrieval.texts.words import holders_of

TEXTS = {
    "whole": "The chemist ROSALIND  Franklin, and others.",
    "parted": "Rosalind met Franklin.",
    "longer": "Rosalinda Franklin sang.",
    "chinese": "詩人李白是唐朝人",
    "composed": "Irène Joliot-Curie won a prize.",
    "decomposed": "Ire\u0300ne Joliot-Curie won a prize.",
    "empty": "",
}


def test_a_text_holds_a_name_by_its_words_in_sequence() -> None:
    assert holders_of(["Rosalind Franklin"], TEXTS) == {"whole"}
    assert holders_of(["rosalind franklin", "Nobody Else"], TEXTS) == {"whole"}


def test_scripts_without_spaces_and_other_forms_of_letters_count() -> None:
    assert holders_of(["李白"], TEXTS) == {"chinese"}
    assert holders_of(["Irène Joliot-Curie"], TEXTS) == {"composed", "decomposed"}


def test_a_name_without_words_is_held_by_no_text() -> None:
    assert holders_of(["", "…"], TEXTS) == set()
