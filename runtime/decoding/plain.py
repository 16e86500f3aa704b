"""Results as plain data, the same wherever they are written: a line of JSON, an answer of HTTP."""

from __future__ import annotations

from typing import Any

from .results import Hypothesis, Result


def result_data(result: Result) -> dict[str, Any]:
    """Of a text with all hypotheses, of speech with segments and language."""
    outcome = {
        "text": result.text,
        "tokens": result.tokens,
        "log_probability": result.log_probability,
        "score": result.score,
        "finish_reason": result.finish_reason,
        "end_token": result.end_token,
        "error": result.error,
    }
    if result.segments is None:
        return outcome | {"hypotheses": [_hypothesis(h) for h in result.hypotheses]}
    segments = [
        {"start": s.start, "end": s.end, "text": s.text, "tokens": s.tokens}
        for s in result.segments
    ]
    return outcome | {"language": result.language, "segments": segments}


def _hypothesis(hypothesis: Hypothesis) -> dict[str, Any]:
    return {
        "text": hypothesis.text,
        "tokens": hypothesis.tokens,
        "log_probability": hypothesis.log_probability,
        "score": hypothesis.score,
        "finish_reason": hypothesis.finish_reason,
        "end_token": hypothesis.end_token,
        "token_log_probabilities": hypothesis.token_log_probabilities,
        "alternatives": [
            [
                {"token": a.token, "text": a.text, "log_probability": a.log_probability}
                for a in alternatives
            ]
            for alternatives in hypothesis.alternatives
        ],
    }
