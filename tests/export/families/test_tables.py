"""The registry of families is complete and unambiguous."""

from __future__ import annotations

import pytest

from dragoman.export.families import ENCODER_FAMILIES, FAMILIES, STATE_DICT_READERS
from dragoman.export.families.hugging_face import tokenizer_kinds
from dragoman.export.registry import MODEL_TYPES


def test_every_registered_model_type_is_read_in_one_way() -> None:
    read = [*FAMILIES, *ENCODER_FAMILIES, *STATE_DICT_READERS]
    assert sorted(read) == sorted(MODEL_TYPES)
    formats = {
        **dict.fromkeys([*FAMILIES, *ENCODER_FAMILIES], "Hugging Face"),
        **dict.fromkeys(STATE_DICT_READERS, "state dictionary"),
    }
    assert formats == {name: row.format for name, row in MODEL_TYPES.items()}


@pytest.mark.parametrize("model_type", FAMILIES)
def test_a_family_record_is_complete(model_type: str) -> None:
    family = FAMILIES[model_type]
    assert family.tokenizers and all(kind.readers for kind in family.tokenizers)


def test_a_tokenizer_class_names_one_kind() -> None:
    kinds = {id(kind): kind for kind in tokenizer_kinds()}
    classes = [name for kind in kinds.values() for name in kind.classes]
    assert len(classes) == len(set(classes))
    assert not [name for name in classes if name.endswith("Fast")]
