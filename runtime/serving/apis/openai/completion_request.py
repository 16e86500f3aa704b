"""OpenAI's protocol: what a request for completions asks for."""

from __future__ import annotations

from typing import Any

from ....decoding.options import GenerationOptions
from ..bodies import BodyError, Fields

MOST_STOPS = 4


class Completion:
    """
    Attributes:
        prompts: texts, or lists of token ids
        stream: whether the text of the only output is told as it comes
        with_usage: whether a stream says at its end how many tokens there were
        echo: whether texts begin with their prompts
        logprobs: how many tokens are reported for each step; None: not even those that were chosen
        stops: texts that end an output

    Raises:
        BodyError: fields are wrong, unknown or not supported together.
    """

    def __init__(self, fields: Fields) -> None:
        prompt = fields.need("prompt", (str, list))
        single = isinstance(prompt, str) or (bool(prompt) and type(prompt[0]) is int)
        self.prompts: list[Any] = [prompt] if single else prompt
        self.stream: bool = fields.take("stream", bool, False)
        self.with_usage = bool(fields.take("stream_options", dict, {}).get("include_usage"))
        self.echo: bool = fields.take("echo", bool, False)
        self.logprobs: int | None = fields.take("logprobs", int)
        stop = fields.take("stop", (str, list), [])
        self.stops: list[str] = [stop] if isinstance(stop, str) else stop
        self._n: int = fields.take("n", int, 1)
        self._temperature = fields.take("temperature", (float, int), 1.0)
        self._top_p = fields.take("top_p", (float, int))
        self._seed: int | None = fields.take("seed", int)
        self._max_tokens: int | None = fields.take("max_tokens", int)
        for name, neutral in (
            *(("frequency_penalty", 0), ("presence_penalty", 0), ("best_of", self._n)),
            *(("suffix", None), ("logit_bias", {})),
        ):
            value = fields.take(name, (float, int, str, dict), neutral)
            if value != neutral:
                raise BodyError(f"{name}: expected {neutral}, no other value is supported")
        fields.ignore("user")
        fields.end()
        self._check()

    def _check(self) -> None:
        if not self.prompts or not all(_is_prompt(prompt) for prompt in self.prompts):
            raise BodyError("prompt: expected texts or lists of token ids")
        if len(self.stops) > MOST_STOPS or not all(isinstance(s, str) and s for s in self.stops):
            raise BodyError(f"stop: expected at most {MOST_STOPS} texts, none of them empty")
        if self.stream and (len(self.prompts) > 1 or self._n > 1):
            raise BodyError("stream: expected one prompt and n of 1")
        if self.stream and self.echo:
            raise BodyError("stream: expected echo to be false")
        for other, given in (("stream", self.stream), ("echo", self.echo)):
            if given and self.logprobs is not None:
                raise BodyError(f"logprobs: expected none with {other}, found {self.logprobs}")

    @property
    def options(self) -> GenerationOptions:
        """
        Raises:
            DragomanError: a value is out of range.
        """
        greedy = self._temperature == 0
        if greedy and self._n > 1:
            raise BodyError(f"n: expected 1 with temperature 0, found {self._n}")
        sampling: dict[str, Any] = {}
        if not greedy:
            # Of several prompts each has random numbers of its own, unless a seed is given.
            sampling = {"temperature": self._temperature, "top_k": 0, "seed": self._seed}
            if self._top_p is not None:
                sampling["top_p"] = self._top_p
        return GenerationOptions(
            do_sample=not greedy,
            num_beams=1,
            num_return_sequences=self._n,
            max_new_tokens=16 if self._max_tokens is None else self._max_tokens,
            alternatives=self.logprobs or 0,
            **sampling,
        )


def _is_prompt(prompt: Any) -> bool:
    ids = isinstance(prompt, list) and bool(prompt) and all(type(t) is int for t in prompt)
    return isinstance(prompt, str) or ids
