"""Tests of other tools run where those are installed: `make test-peers`."""

from importlib.util import find_spec

PEERS = (
    "test_ctranslate2_peer.py",
    "test_encoding_peers.py",
    "test_language_model_peers.py",
    "test_peers.py",
)
collect_ignore = [] if find_spec("ctranslate2") else [*PEERS]
