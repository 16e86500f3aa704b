"""The faults that `verify` does not catch, each with the reason, and those without an effect."""

from __future__ import annotations

from collections.abc import Mapping

CACHES = (
    "keys and values are rounded and read with the same scales, which are coarser or cut off the "
    "largest numbers: the distributions stay within what the precision may cost"
)

KNOWN_MISSES: Mapping[str, str] = {
    "the other GELU / bert-classifier neutral fp16": (
        "the two GELUs differ by 0.0005 at most, and the three logits by less than float32 rounds"
    ),
    "errors are compensated with the wrong sign / gpt2 cpu int4": (
        "products of the few calibration texts are about as near as compensation may leave others"
    ),
    "the scales of cached keys are halved / gpt2 cpu int8": CACHES,
    "the scales of cached keys are halved / g2p-en cpu int4": CACHES,
    "the scales of cached values are doubled / bart cpu int8": CACHES,
    "the scales of cached values are doubled / t5 cpu int4": CACHES,
    "the scales of caches are a quarter / g2p-en cpu int4": CACHES,
    "the scales of keys are those of values / bart cpu int8": CACHES,
    "the scales of keys are those of values / gpt2 cpu int4": CACHES,
    "states are rounded to 16 bits between steps / ssru cpu int8": (
        "16 bits round far less than the 8 bits that the precision allows"
    ),
    "all products have the scale of the first one's inputs / bert-embedding openvino int8": (
        "the scales of smaller inputs are coarser: embeddings stay within what the precision may "
        "cost"
    ),
}
"""The reason why a case is not caught, by the name of the case."""

WITHOUT_EFFECT: frozenset[str] = frozenset(
    {
        "distances are clipped one earlier / t5 cpu fp32",
        # The runtime allows end tokens, whatever a file says.
        "the end token is missing in the lists / ssru cpu fp32",
        "the end token is missing in the lists / ssru cpu int8",
        # The runtime never truncates texts, whatever a file says.
        "texts are cut after 12 tokens / bart cpu fp32",
        "texts are cut after 12 tokens / bert-embedding cpu fp32",
    }
)
"""Names of cases whose faulty bundle behaves as the right one does: `equivalence` computes it."""
