"""How probable texts are for a language model: its perplexity."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tokenizers import Tokenizer

from ..language_model import LanguageModel
from ..training.batching import Pair
from ..training.teacher_forcing import negative_log_likelihood
from .examples import Example


def whole_texts(examples: Sequence[Example], tokenizer: Tokenizer) -> list[Pair]:
    """What a language model learns of examples: each source with the reference that continues it.

    Args:
        tokenizer: ends every text with the end token
    """
    return [
        ((), tokenizer.encode(example.source + reference).ids)
        for example in examples
        for reference in example.references
    ]


def perplexity(
    model: LanguageModel, examples: Sequence[Example], tokenizer: Tokenizer
) -> dict[str, float]:
    """Of whole texts, end tokens included: e to the power of the mean negative log-likelihood of a
    token, and its sum in bits for each character, which does not depend on the tokenizer.
    """
    texts = whole_texts(examples, tokenizer)
    nats = negative_log_likelihood(model, texts)
    tokens_in_all = sum(len(text) for _, text in texts)
    characters = sum(len(e.source) + len(reference) for e in examples for reference in e.references)
    return {
        "perplexity": math.exp(nats / tokens_in_all),
        "bits per character": nats / math.log(2) / characters,
    }
