"""Messages of the library in the words of the command line."""

from __future__ import annotations

import pytest

from dragoman.cli.option_names import in_option_names
from dragoman.cli.run import run


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("num_beams: expected 1, found 2", "--beams: expected 1, found 2"),
        ("temperature, top_k: set do_sample", "--temperature, --top-k: set --sample"),
        ("seed: no; prefix: no", "--seed: no; --prefix: no"),
        ("a prefix: no seed", "a prefix: no seed"),
        ("must_contain: 'seed: num_beams' is no", "--must-contain: 'seed: num_beams' is no"),
        ('prefix: found "it\'s; seed: x"', '--prefix: found "it\'s; seed: x"'),
        (
            "the model's num_beams and its max_new_tokens_2",
            "the model's --beams and its max_new_tokens_2",
        ),
        ("max_batch_size: 0", "--batch-size: 0"),
        ("", ""),
    ],
)
def test_names(message: str, expected: str) -> None:
    assert in_option_names(message, run) == expected
