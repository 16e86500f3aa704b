"""Decoding in PyTorch: the oracle of all parity checks, and greedy decoding with a cache.

Beam search (Sutskever et al. 2014, section 3.2) has no cache. It finds the same hypotheses as
`generate` of Hugging Face (`transformers` 5.23, `_beam_search`), which differs in two ways:

- Hugging Face decodes a batch until the last source is done and freezes finished sources. This
  module decodes one source at a time, with the same result.
- If the rules leave fewer next tokens than beams, Hugging Face adds copies with scores of at most
  -1e9 and may return them. This module returns fewer hypotheses. The copies count as finished, so
  that with `early_stopping` True the search of Hugging Face may end sooner.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import zip_longest

import torch
from torch import Tensor

from .config import ModelConfig
from .generation import GenerationConfig
from .layers import KeysValues, RecurrentUnit
from .models import AutoregressiveModel, HiddenStates, LanguageModel, Source, Transformer
from .stacks import NoMemory


class KeyValueCache:
    """Keys and values of target positions, in tensors of fixed capacity; or states of a decoder.

    `append` writes at `position[b]` of each row b; the caller advances `position` after each step.

    Attributes:
        position: int64 [B], the next position of each row
        layers: keys and values of each decoder layer, [B, H, capacity, Dh or Dv] each; none of a
            recurrent decoder
        states: the state of each layer of a recurrent decoder, [B, D]
    """

    def __init__(self, config: ModelConfig, batch: int, capacity: int) -> None:
        shape = (batch, config.num_heads, capacity)
        self.capacity = capacity
        self.position = torch.zeros(batch, dtype=torch.long)
        self.layers: list[KeysValues] = [
            (torch.zeros(*shape, config.head_size), torch.zeros(*shape, config.value_size))
            for _ in range(0 if config.is_recurrent else config.decoder_layers)
        ]
        self.states = [torch.zeros(batch, config.d_model)] * config.decoder_layers

    def append(self, layer: int, key: Tensor, value: Tensor) -> KeysValues:
        """Write keys and values at the next positions; return all keys and values of the layer."""
        keys, values = self.layers[layer]
        row = torch.arange(key.shape[0])[:, None]
        slot = self.position[:, None] + torch.arange(key.shape[2])
        keys[row, :, slot] = key.transpose(1, 2)
        values[row, :, slot] = value.transpose(1, 2)
        return keys, values

    def length(self, queries: int) -> int:
        """Return the capacity."""
        return self.capacity

    def carry(self, layer: int, unit: RecurrentUnit, *inputs: Tensor) -> Tensor:
        """Replace a layer's state by the one after the last query; return those after each."""
        states = unit.states_after(self.states[layer], *inputs)
        self.states[layer] = states[:, -1]
        return states


def most_new_tokens(model: AutoregressiveModel, prompt: Sequence[int], limit: int) -> int:
    """Return the limit, or the number of positions that a language model has after its prompt.

    The last new token needs none, since the model does not read it.
    """
    if not isinstance(model, LanguageModel):
        return limit
    return min(limit, model.config.max_target_positions + 1 - len(prompt))


@torch.inference_mode()
def greedy_uncached(
    model: AutoregressiveModel, sources: Sequence[Source], max_new_tokens: int
) -> list[list[int]]:
    """Decode each source greedily, recomputing the whole target at every step.

    Args:
        sources: token ids (at least one) or features of each source; for a language model, the
            tokens of the text to continue
        max_new_tokens: maximum number of tokens to generate, including the end token; a language
            model stops earlier when its positions are used up

    Returns:
        generated ids for each source, without start token and prompt, up to and including the end
        token
    """

    def finish(rows: _Rows, hidden: HiddenStates) -> None:
        while rows.running:
            rows.choose(uncached_logits(model, hidden, rows.targets))

    return _finished(model, sources, max_new_tokens, finish)


def _finished(
    model: AutoregressiveModel,
    sources: Sequence[Source],
    limit: int,
    finish: Callable[[_Rows, HiddenStates], None],
) -> list[list[int]]:
    outputs: dict[int, list[int]] = {}
    for group in _of_equal_prompts(model, sources):
        rows = _Rows(model, [sources[i] for i in group], limit)
        finish(rows, model.decoding(rows.sources))
        outputs.update(zip(group, rows.outputs, strict=True))
    return [outputs[i] for i in range(len(sources))]


def _of_equal_prompts(model: AutoregressiveModel, sources: Sequence[Source]) -> Iterable[list[int]]:
    """Group sources, by number, whose prompts have the same length."""
    groups: dict[int, list[int]] = {}
    for number, source in enumerate(sources):
        groups.setdefault(len(model.prompt(source)), []).append(number)
    return groups.values()


def uncached_logits(
    model: AutoregressiveModel, hidden: HiddenStates, targets: Sequence[Sequence[int]]
) -> Tensor:
    """Compute the logits [B, V] after targets of equal length; `hidden` decodes their sources."""
    token = torch.tensor(targets)
    start = torch.zeros(len(token), dtype=torch.long)
    logits: Tensor = model.output(hidden(token, start, NoMemory())[:, -1])
    return logits


@torch.inference_mode()
def greedy_verified(
    model: AutoregressiveModel,
    sources: Sequence[Source],
    max_new_tokens: int,
    drafts: Sequence[Sequence[int]] | None = None,
) -> list[list[int]]:
    """Decode as `greedy_uncached` does, with the same result, in a few passes without a cache.

    A cache proposes tokens, and one pass over all of them confirms each that is the best one after
    those before it. The first that is not is replaced, and decoding goes on from there.

    Args:
        model, sources, max_new_tokens: see `greedy_uncached`
        drafts: an output of each source that is likely, such as a deployed model's; only sources
            whose draft one pass does not confirm are decoded
    """
    if drafts is not None:
        outputs = _confirmed_drafts(model, sources, max_new_tokens, drafts)
        others = [number for number in range(len(sources)) if not outputs[number]]
        decoded = greedy_verified(model, [sources[i] for i in others], max_new_tokens)
        outputs |= zip(others, decoded, strict=True)
        return [outputs[number] for number in range(len(sources))]

    def finish(rows: _Rows, hidden: HiddenStates) -> None:
        confirmed = 0
        while rows.running:
            _propose(rows, hidden)
            confirmed = _confirm(rows, hidden, confirmed)

    return _finished(model, sources, max_new_tokens, finish)


def _propose(rows: _Rows, hidden: HiddenStates) -> None:
    """Decode with a cache, from the present tokens to the end."""
    token = torch.tensor(rows.targets)
    capacity = token.shape[1] + rows.limit - len(rows.new[0])
    cache = KeyValueCache(rows.model.config, len(token), capacity)
    while rows.running:
        states = hidden(token, cache.position, cache)
        rows.choose(rows.model.output(states[:, -1]))
        cache.position += token.shape[1]
        token = torch.tensor([[row[-1]] for row in rows.new])


def _confirm(rows: _Rows, hidden: HiddenStates, confirmed: int) -> int:
    """Compare proposed tokens, from number `confirmed` on, with those of one pass without a cache.

    Everything after the first other token is removed, and the token replaced. Returns how many
    tokens are the best ones now.
    """
    for step, wrong in _wrong_rows(rows, hidden, confirmed):
        if wrong:
            return step + 1
    return len(rows.new[0])


def _confirmed_drafts(
    model: AutoregressiveModel,
    sources: Sequence[Source],
    limit: int,
    drafts: Sequence[Sequence[int]],
) -> dict[int, list[int]]:
    """Return the drafts that `greedy_uncached` would return, by number; empty lists for others."""
    confirmed: dict[int, list[int]] = {}
    for group in _of_equal_prompts(model, sources):
        rows = _Rows(model, [sources[i] for i in group], limit)
        own = [list(drafts[i]) if _is_complete(rows, drafts[i]) else [] for i in group]
        if any(own):
            rows.new = list(map(list, zip(*zip_longest(*own, fillvalue=0), strict=True)))
            for _, wrong in _wrong_rows(rows, model.decoding(rows.sources), 0):
                for row in wrong:
                    own[row] = []
        confirmed.update(zip(group, own, strict=True))
    return confirmed


def _is_complete(rows: _Rows, draft: Sequence[int]) -> bool:
    """Return whether tokens end with their only end token, or at the limit without one."""
    if not 0 < len(draft) <= rows.limit:
        return False
    if min(draft) < 0 or max(draft) >= rows.model.config.target_vocab_size:
        return False  # a wrong graph may choose what is no token
    ends = [token in rows.end_tokens for token in draft]
    return not any(ends[:-1]) and (ends[-1] or len(draft) == rows.limit)


MOST_LOGITS = 2**24
"""Numbers among the logits that are computed at once."""


def _wrong_rows(rows: _Rows, hidden: HiddenStates, first: int) -> Iterator[tuple[int, list[int]]]:
    """Yield each step from `first` on, and the rows whose token there is not the best one.

    Tokens after a row's end are not compared. While a step is yielded, `rows.new` holds the tokens
    before it and its best ones, also for a caller that stops there; after the last step, it is as
    before.
    """
    token = torch.tensor(rows.targets)[:, :-1]
    states = hidden(token, torch.zeros(len(token), dtype=torch.long), NoMemory())
    states = states[:, len(rows.prompts[0]) - 1 + first :]
    proposed, outputs = rows.new, rows.outputs
    at_once, step = max(1, MOST_LOGITS // (len(token) * rows.model.config.target_vocab_size)), first
    for part in states.split(at_once, 1):
        for scores in rows.model.output(part).unbind(1):
            rows.new = [row[:step] for row in proposed]
            rows.choose(scores)
            pairs = enumerate(zip(rows.new, outputs, strict=True))
            yield step, [i for i, (new, own) in pairs if own[step : step + 1] not in ([], new[-1:])]
            step += 1
    rows.new = proposed


@torch.inference_mode()
def greedy_cached(
    model: Transformer, sources: Sequence[Source], max_new_tokens: int
) -> list[list[int]]:
    """Decode as `greedy_uncached` does, computing one new position per step."""
    rows = _Rows(model, sources, max_new_tokens)
    _propose(rows, model.decoding(sources))
    return rows.outputs


class _Rows:
    """The outputs of a batch so far; finished rows keep decoding, and the surplus is cut off.

    Attributes:
        prompts: first tokens of each row, of equal number
        new: generated tokens of each row
    """

    def __init__(self, model: AutoregressiveModel, sources: Sequence[Source], limit: int) -> None:
        self.model, self.sources = model, sources
        self.prompts = [model.prompt(source) for source in sources]
        self.limit = most_new_tokens(model, self.prompts[0], limit)
        self.end_tokens = model.generation.end_tokens(model.config.end_token_id)
        self.new: list[list[int]] = [[] for _ in sources]
        self._rules = [_rules(model, source, self.limit, model.generation) for source in sources]

    @property
    def targets(self) -> list[list[int]]:
        return [prompt + row for prompt, row in zip(self.prompts, self.new, strict=True)]

    @property
    def running(self) -> bool:
        return len(self.new[0]) < self.limit and any(
            set(self.end_tokens).isdisjoint(row) for row in self.new
        )

    @property
    def outputs(self) -> list[list[int]]:
        ends = self.end_tokens
        lengths = (next((i for i, t in enumerate(row, 1) if t in ends), None) for row in self.new)
        return [row[:length] for row, length in zip(self.new, lengths, strict=True)]

    def choose(self, logits: Tensor) -> None:
        """Append the best token to every row; logits [B, V]."""
        if self.model.generation.is_plain:
            tokens = logits.argmax(-1).tolist()  # one transfer, since each one synchronizes a GPU
        else:
            scored = zip(self._rules, logits, self.new, strict=True)
            tokens = [int(rules(row, new=new).argmax()) for rules, row, new in scored]
        for row, token in zip(self.new, tokens, strict=True):
            row.append(token)


def _rules(
    model: AutoregressiveModel, source: Source, limit: int, generation: GenerationConfig
) -> Callable[..., Tensor]:
    """Return `GenerationConfig.scores` of a source, without the scores and the new tokens."""
    return partial(
        generation.scores,
        source=model.source_tokens(source),
        prompt=model.prompt(source),
        end_tokens=generation.end_tokens(model.config.end_token_id),
        limit=limit,
    )


@dataclass(frozen=True)
class Hypothesis:
    """A finished output of beam search."""

    tokens: tuple[int, ...]
    """Generated ids, without start token and prompt, up to and including the end token."""
    score: float
    """Log-probability of all tokens, divided by their number to the power of `length_penalty`;
    hypotheses are ranked by it."""
    token_log_probabilities: tuple[float, ...]
    """Of each token under the rules, in nats: 0 for a forced token, otherwise the model's value
    times any repetition penalty."""
    margin: float = field(default=math.inf, compare=False)
    """The smallest difference of scores that decided the search. Scores that are rounded otherwise
    by so much may give other hypotheses."""


@torch.inference_mode()
def beam_search_uncached(
    model: AutoregressiveModel,
    sources: Sequence[Source],
    max_new_tokens: int,
    *,
    generation: GenerationConfig | None = None,
) -> list[list[Hypothesis]]:
    """Find the best hypotheses for each source. Every step recomputes all targets.

    Args:
        sources, max_new_tokens: see `greedy_uncached`; a hypothesis of that length is finished
        generation: rules and beam search settings; None: the model's

    Returns:
        up to `num_beams` hypotheses for each source, best first (Hugging Face returns the first
        `num_return_sequences`); empty if the rules leave no token before a hypothesis is finished
    """
    generation = generation or model.generation
    return [_search(model, source, max_new_tokens, generation) for source in sources]


def _search(
    model: AutoregressiveModel, source: Source, limit: int, generation: GenerationConfig
) -> list[Hypothesis]:
    beams, penalty = generation.num_beams, generation.length_penalty
    ends = generation.end_tokens(model.config.end_token_id)
    prompt, hidden = model.prompt(source), model.decoding([source])
    limit = most_new_tokens(model, prompt, limit)
    rules = _rules(model, source, limit, generation)
    # Each beam may end with each end token; then `num_beams` unfinished hypotheses are left. One
    # more shows how close it was.
    count = (1 + len(ends)) * beams + 1
    running = [_Beam((), ())]
    finished: list[Hypothesis] = []
    margin = math.inf
    for length in range(1, limit + 1):
        logits = uncached_logits(model, hidden, [[*prompt, *beam.tokens] for beam in running])
        scored = zip(running, logits.log_softmax(-1), strict=True)
        scores = [rules(row, new=list(beam.tokens)) for beam, row in scored]
        candidates = _longer(running, torch.stack(scores).double(), count)
        finished += [
            Hypothesis(beam.tokens, beam.score(length, penalty), beam.log_probabilities)
            for beam in candidates[:beams]  # the others only replace finished beams
            if length == limit or beam.tokens[-1] in ends
        ]
        finished = sorted(finished, key=lambda hypothesis: hypothesis.score, reverse=True)[:beams]
        running = [beam for beam in candidates if beam.tokens[-1] not in ends][:beams]
        if length == limit:
            break
        margin = min(margin, _margin(candidates, beams, ends))
        if not running:
            break
        gain = _possible_gain(running[0], finished, length, limit, generation)
        margin = min(margin, abs(gain))
        if gain <= 0:
            break
    return [dataclasses.replace(hypothesis, margin=margin) for hypothesis in finished]


@dataclass(frozen=True)
class _Beam:
    """An unfinished hypothesis."""

    tokens: tuple[int, ...]
    log_probabilities: tuple[float, ...]

    def score(self, length: int, length_penalty: float) -> float:
        return math.fsum(self.log_probabilities) / length**length_penalty


def _margin(candidates: Sequence[_Beam], beams: int, ends: Sequence[int]) -> float:
    """Return by how much the candidates that go on or finish are ahead of those that do not."""
    scores = [beam.score(1, 0) for beam in candidates]
    has_ended = [beam.tokens[-1] in ends for beam in candidates]
    going_on = [score for score, ended in zip(scores, has_ended, strict=True) if not ended]
    margins = [going_on[beams - 1] - going_on[beams]] if len(going_on) > beams else []
    if len(scores) > beams:
        last, first_dropped = scores[beams - 1], scores[beams]
        margins += [
            score - first_dropped if rank < beams else last - score
            for rank, score in enumerate(scores)
            if has_ended[rank]
        ]
    return min(margins, default=math.inf)


def _possible_gain(
    best: _Beam, finished: list[Hypothesis], length: int, limit: int, generation: GenerationConfig
) -> float:
    """Return by how much the search could exceed the worst finished score; at most 0: it ends.

    `length` is the number of tokens of each unfinished hypothesis, of which `best` is the best.
    """
    if len(finished) < generation.num_beams:
        return math.inf
    if generation.early_stopping is True:
        return -math.inf
    # The best possible score assumes probability 1 for further tokens. At the present length, it
    # misses better scores if longer is better; otherwise it is taken at the most favourable length.
    if generation.early_stopping == "never" and generation.length_penalty > 0:
        length = limit
    return best.score(length, generation.length_penalty) - finished[-1].score


def _longer(beams: Sequence[_Beam], scores: Tensor, count: int) -> list[_Beam]:
    """Return the most probable beams that are one token longer, best first.

    Ties are in the order of the beams, then of the tokens.

    Args:
        scores: float64 [beams, V], log-probabilities of the next token under the rules
    """
    sums = torch.tensor([math.fsum(b.log_probabilities) for b in beams], dtype=torch.float64)
    total = sums[:, None] + scores
    order = total.flatten().argsort(descending=True, stable=True)[:count]
    rows, tokens = order // scores.shape[1], order % scores.shape[1]
    return [
        _Beam((*beams[row].tokens, token), (*beams[row].log_probabilities, score))
        for row, token, score in zip(
            rows.tolist(), tokens.tolist(), scores[rows, tokens].tolist(), strict=True
        )
        if score > -math.inf
    ]


DECODING_BATCH = 256
"""Sources decoded at once by `decoded`."""


def decoded(model: Transformer, sources: Sequence[Sequence[int]]) -> list[list[int]]:
    """Decode sources greedily, as far as the model's positions go.

    Most outputs end soon. The few that do not are decoded again on their own, so that the others
    need not wait for them.
    """
    limit = model.config.max_target_positions
    ends = model.generation.end_tokens(model.config.end_token_id)
    outputs: list[list[int]] = [[] for _ in sources]

    def decode(chosen: Iterable[int], bound: Callable[[int], int]) -> None:
        order = sorted(chosen, key=lambda i: len(sources[i]))
        for first in range(0, len(order), DECODING_BATCH):
            batch = order[first : first + DECODING_BATCH]
            most = min(bound(len(sources[batch[-1]])), limit)
            found = greedy_cached(model, [sources[i] for i in batch], most)
            for index, output in zip(batch, found, strict=True):
                outputs[index] = output

    decode(range(len(sources)), lambda longest: 3 * longest + 10)
    unfinished = [
        i for i, output in enumerate(outputs) if output[-1] not in ends and len(output) < limit
    ]
    decode(unfinished, lambda longest: limit)
    return outputs
