"""Whisper beside faster-whisper: the same weights, clips and threads, interleaved in one run."""
