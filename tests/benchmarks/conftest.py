"""Tests of other tools run where those are installed: `make test-peers`."""

from importlib.util import find_spec

collect_ignore = [] if find_spec("ctranslate2") else ["test_ctranslate2_peer.py", "test_peers.py"]
