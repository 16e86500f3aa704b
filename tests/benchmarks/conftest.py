"""Comparisons without pauses, in which exported graphs come from the cache of the tests. Tests of
other tools run where those are installed: `make test-peers`; two files need what only the other
environment has."""

from importlib.util import find_spec
from pathlib import Path

import pytest

from dragoman.benchmarks.compare import rounds
from dragoman.benchmarks.compare.contenders import text

from .doubles import bundle_of_cached_graphs

PEERS = (
    "test_ctranslate2_peer.py",
    "test_encoding_peers.py",
    "test_language_model_peers.py",
    "test_peers.py",
)
IN_THE_OTHER_ENVIRONMENT = {"test_bandwidth.py": "cuda", "test_translation.py": "sacrebleu"}
collect_ignore = [] if find_spec("ctranslate2") else [*PEERS]
collect_ignore += [file for file, name in IN_THE_OTHER_ENVIRONMENT.items() if not find_spec(name)]


@pytest.fixture(scope="session")
def marian(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of random weights and 200 tokens."""
    from dragoman.benchmarks.models.random_checkpoint import write_random_text_model

    directory = tmp_path_factory.mktemp("marian")
    write_random_text_model("tiny", directory, vocab_size=200)
    return directory


@pytest.fixture(autouse=True)
def _fast_comparisons(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounds, "SETTLE_SECONDS", 0.0)
    monkeypatch.setattr(text, "bundle_of_checkpoint", bundle_of_cached_graphs)
