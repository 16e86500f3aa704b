"""The table of families is complete and unambiguous."""

from __future__ import annotations

import pytest

from dragoman.export.families import FAMILIES, STATE_DICT_FAMILIES


def test_no_model_type_has_two_families() -> None:
    assert not FAMILIES.keys() & STATE_DICT_FAMILIES.keys()


@pytest.mark.parametrize("model_type", FAMILIES)
def test_a_family_record_is_complete(model_type: str) -> None:
    family = FAMILIES[model_type]
    assert family.model_type == model_type and family.describes
    assert family.tokenizers and all(kind.readers for kind in family.tokenizers)


def test_a_tokenizer_class_names_one_kind() -> None:
    kinds = {id(kind): kind for family in FAMILIES.values() for kind in family.tokenizers}
    classes = [name for kind in kinds.values() for name in kind.classes]
    assert len(classes) == len(set(classes))
    assert not [name for name in classes if name.endswith("Fast")]
