"""OpenAI's protocol: errors."""

from __future__ import annotations

from typing import Any

from ..http import Problem

TYPES = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error"}


def error_body(problem: Problem) -> dict[str, Any]:
    default = "invalid_request_error" if problem.status < 500 else "server_error"
    kind = TYPES.get(problem.status, default)
    return {
        "error": {"message": problem.message, "type": kind, "param": None, "code": problem.code}
    }
