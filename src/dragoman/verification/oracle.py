"""The oracle: the reference model in fp32, which decodes greedily without a cache.

Oracle and bundle also run along the oracle's outputs, teacher-forced. What a precision costs
differs between trained models by a factor of a hundred and more, so that a bundle is held to a
multiple of the distance of its own oracle with weights rounded to the nearest, without compensation
(GPTQ).
"""

from __future__ import annotations

import contextlib
import copy
import functools
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from dragoman.errors import DragomanError
from dragoman.optimize.checking.encoded_once import EncodedWindows
from dragoman.optimize.precision.weights import Scheme
from dragoman.optimize.targets import Schemes, find_target
from dragoman.reference_model import (
    AutoregressiveModel,
    EncoderModel,
    LanguageModel,
    NoMemory,
    ReferenceModel,
    Source,
    Transformer,
    greedy_verified,
)
from dragoman.reference_model.attention import MultiHeadAttention
from dragoman.reference_model.layers import KeysValues
from dragoman.reference_model.models import MaskedLanguageModelHead
from dragoman.reference_model.stacks import Output
from dragoman.runtime import Model
from dragoman.runtime.decoding.request import EncoderInput, as_batch, batches, pad
from dragoman.runtime.format.manifest import Manifest, Precision
from dragoman.runtime.format.model_spec import ModelSpec
from dragoman.runtime.scoring.teacher_forcing import forcing_batches
from dragoman.settings.generation import DEFAULT_BATCH_SIZE

BATCH_SIZE = 64
BATCH_TOKENS = 4096


def oracle_for(
    reference: AutoregressiveModel, manifest: Manifest, target_language: str | None = None
) -> tuple[AutoregressiveModel, str | None]:
    """Configure the reference model to generate one language, and to attend by PyTorch's kernel.

    Args:
        target_language: None: the bundle's default, or else its first language

    Returns:
        the model and the language, None for a model without languages
    """
    for module in reference.modules():
        if isinstance(module, MultiHeadAttention):
            module.attend = _attend
    reference, languages = _encoding_once(reference), manifest.languages
    if languages is None:
        return reference, None
    code = target_language or languages.default_target or min(languages.tokens)
    start, settings = languages.start_of(code, manifest.model.start_token_id, manifest.generation)
    oracle = copy.copy(reference)
    oracle.config = reference.config.replace(start_token_id=start)
    oracle.generation = replace(
        reference.generation, forced_first_token_id=settings.forced_first_token_id
    )
    return oracle, code


def _attend(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float | None
) -> Tensor:
    """Attend by PyTorch's kernel, which keeps no scores: of speech, they take half the time."""
    return nn.functional.scaled_dot_product_attention(query, key, value, mask, scale=scale)


def oracle_outputs(
    oracle: AutoregressiveModel,
    sources: Sequence[EncoderInput],
    limit: int,
    advance: Callable[[int], None] = lambda count: None,
    drafts: Sequence[Sequence[int]] | None = None,
) -> list[list[int]]:
    """Decode each source greedily; outputs include the end token if it is reached.

    Args:
        drafts: likely outputs, which make it faster, see `greedy_verified`
    """
    outputs: dict[int, list[int]] = {}
    lengths = lengths_of(sources)
    for batch in batches(lengths, max_batch_size=BATCH_SIZE, max_batch_tokens=BATCH_TOKENS):
        likely = None if drafts is None else [drafts[i] for i in batch]
        decoded = greedy_verified(oracle, [for_torch(sources[i]) for i in batch], limit, likely)
        outputs.update(zip(batch, decoded, strict=True))
        advance(len(batch))
    return [outputs[i] for i in range(len(sources))]


def evenly(count: int, most: int) -> list[int]:
    """Choose at most so many of 0 to count - 1, first and last among them."""
    chosen: list[int] = np.linspace(0, count - 1, min(most, count)).astype(int).tolist()
    return chosen


def lengths_of(sources: Sequence[EncoderInput]) -> list[int]:
    """Return the number of tokens, or of frames, of each source."""
    return [
        source.shape[-1] if isinstance(source, np.ndarray) else len(source) for source in sources
    ]


def for_torch(source: EncoderInput) -> Source:
    """Convert a source for the reference model."""
    return torch.from_numpy(source) if isinstance(source, np.ndarray) else source


MOST_LOGITS = 2**25
"""Numbers among the logits of a batch."""
COMPARED_SOURCES = 64
"""The number of sources whose tensors are compared, spread evenly over all."""


@dataclass(frozen=True)
class ForcedBatch:
    """The outputs of oracle and bundle for a batch of sources."""

    source: NDArray[Any]
    """Token ids [B, S], or features [B, mel bins, frames]."""
    source_mask: NDArray[np.bool_]
    """[B, S], True at tokens."""
    read: NDArray[np.int64]
    """The decoders' input, [B, T]."""
    read_mask: NDArray[np.bool_]
    """[B, T], True at tokens."""
    chosen_mask: NDArray[np.bool_]
    """[B, T], True where the model chooses the next token, which excludes the prompt and a forced
    first token."""
    cross: Sequence[KeysValues]
    """The oracle's keys and values of each decoder layer, [B, H, S, Dh]."""
    logits: NDArray[np.float32]
    """The oracle's logits, [B, T, V]."""
    encoded: dict[str, NDArray[Any]]
    """The outputs of the bundle's encoder, by name."""
    scored: NDArray[Any]
    """The bundle's logits, [B, T, V]."""


def forced_batches(
    model: Model,
    oracle: AutoregressiveModel,
    sources: Sequence[EncoderInput],
    outputs: list[list[int]],
) -> Iterator[ForcedBatch]:
    """Run oracle and bundle along the oracle's outputs, on some of the sources."""
    spec, generation = model.manifest.model, oracle.generation
    compared = evenly(len(sources), COMPARED_SOURCES)
    prompts = {i: oracle.prompt(for_torch(sources[i])) for i in compared}
    forced = generation.forced_first_token_id is not None
    reads = {i: [*prompts[i], *outputs[i][:-1]] for i in compared}
    lengths = [(len(sources[i]), len(reads[i])) for i in compared]
    for batch in oracle_batches(spec, lengths):
        rows = [compared[i] for i in batch]
        encoded = [sources[i] if spec.has_encoder else [] for i in rows]
        source, source_mask = as_batch(encoded, spec)
        read, read_mask = pad([reads[i] for i in rows], spec.pad_token_id)
        cross, logits = oracle_pass(oracle, source, source_mask, read)
        check_finite(logits)
        given = np.array([len(prompts[i]) + forced for i in rows])
        found = model.backend.encode(source, source_mask) if spec.has_encoder else {}
        chosen_mask = read_mask & (np.arange(read.shape[1]) >= given[:, None] - 1)
        yield ForcedBatch(
            source,
            source_mask,
            read,
            read_mask,
            chosen_mask,
            cross,
            logits,
            found,
            model.backend.score(found or source, source_mask, read),
        )


def check_finite(outputs: NDArray[Any]) -> None:
    """Refuse a trained model with outputs that nothing can be compared with."""
    if not np.isfinite(outputs).all():
        raise DragomanError("the trained model itself gives values that are NaN or infinite")


def oracle_batches(spec: ModelSpec, lengths: Sequence[tuple[int, int]]) -> Iterator[list[int]]:
    """Group sources as `forcing_batches` does, with one window of audio, whose scores are large."""
    rows = 1 if spec.takes_audio else DEFAULT_BATCH_SIZE
    return forcing_batches(spec, lengths, rows, MOST_LOGITS)


@torch.inference_mode()
def oracle_pass(
    oracle: AutoregressiveModel,
    source: NDArray[Any],
    source_mask: NDArray[np.bool_],
    read: NDArray[np.int64],
    positions: NDArray[np.int64] | None = None,
) -> tuple[list[KeysValues], NDArray[np.float32]]:
    """Compute keys and values of cross-attention, if there is any, and logits [B, R, V].

    Args:
        read: the decoder's input, [B, T]
        positions: where logits are computed, [R]; None: all
    """
    token, start = torch.from_numpy(read), torch.zeros(len(read), dtype=torch.long)
    cross: list[KeysValues] = []
    if isinstance(oracle, LanguageModel):
        hidden = oracle.decode(token, start, NoMemory())
    else:
        mask = torch.from_numpy(source_mask)
        cross = oracle.encode(torch.from_numpy(source), mask)
        hidden = oracle.decoder(token, start, mask, cross, NoMemory())
    if positions is not None:
        hidden = hidden[:, torch.from_numpy(positions)]
    return cross, oracle.output(hidden).numpy()


@torch.inference_mode()
def encoder_pass(
    oracle: EncoderModel,
    source: NDArray[np.int64],
    mask: NDArray[np.bool_],
    types: NDArray[np.int64] | None = None,
) -> list[NDArray[Any]]:
    """Compute the outputs of an encoder-only model for a batch [B, S]."""
    segments = None if types is None else torch.from_numpy(types)
    found = oracle(torch.from_numpy(source), torch.from_numpy(mask), segments)
    return [output.numpy() for output in found]


_encoded_by = weakref.WeakKeyDictionary[nn.Module, EncodedWindows]()
"""What encoders of speech have computed."""


@contextlib.contextmanager
def encoding_anew(oracle: ReferenceModel) -> Iterator[None]:
    """Let a model of speech encode anew within the block; what it remembers, it keeps."""
    encoder = oracle.encoder if isinstance(oracle, Transformer) else None
    known = None if encoder is None else _encoded_by.pop(encoder, None)
    try:
        yield
    finally:
        if encoder is not None and known is not None:
            _encoded_by[encoder] = known


def _encoding_once(oracle: AutoregressiveModel) -> AutoregressiveModel:
    """Let a model of speech encode a window once for all checks; others are returned as they are.

    Copies that share encoder and decoder, such as one for each language, share what they computed.
    A deep copy computes its own.
    """
    if not isinstance(oracle, Transformer) or not oracle.config.takes_audio:
        return oracle
    made = copy.copy(oracle)
    vars(made)["encode"] = functools.partial(_encode_once, oracle)
    return made


def _encode_once(oracle: Transformer, source: Tensor, mask: Tensor) -> list[KeysValues]:
    def encode(features: NDArray[Any], mask: NDArray[np.bool_]) -> Tensor:
        encoded: Tensor = oracle.encoder(torch.from_numpy(features), torch.from_numpy(mask))
        return encoded

    known = _encoded_by.setdefault(oracle.encoder, EncodedWindows())
    return oracle.decoder.cross_keys_values(
        torch.cat(known.of(source.numpy(), mask.numpy(), encode))
    )


CLIPPED_AT = (1.0, 0.95, 0.9, 0.85, 0.8, 0.75, 0.7, 0.65)
"""Candidates for clipping in 4 bits, as shares of the largest weight of a scale. The candidate with
the smallest error is used."""

NUMBERS_AT_ONCE = 2**22
"""Numbers of a weight that are rounded at once."""

M = TypeVar("M", bound=ReferenceModel)

HALVES: dict[Precision, torch.dtype] = {"fp16": torch.float16, "bf16": torch.bfloat16}


def rounded_oracle(oracle: M, manifest: Manifest) -> M:
    """Copy the oracle to compute in the precision of a bundle.

    In 16 bits, all weights and outputs of modules are rounded. In int8 and int4, the weights of
    products and tables are, unless the user kept them, and the inputs of products if the target
    rounds them.
    """
    # Parameters are not copied but replaced where they are rounded.
    rounded = copy.deepcopy(oracle, {id(parameter): parameter for parameter in oracle.parameters()})
    recipe = find_target(manifest.target).recipe
    half = HALVES.get(manifest.precision)
    if half is None:
        width = oracle.config.d_model
        schemes = recipe.schemes(manifest.precision, manifest.graphs, {width})
        _round_products(rounded, schemes, manifest.keep_fp32)
        half = HALVES.get(recipe.half_activations) if recipe.half_activations else None
    if half is not None:
        _round_to_half(rounded, half)
    return rounded


def _round_products(model: ReferenceModel, schemes: Schemes, kept: Collection[str]) -> None:
    tied = model.config.tie_target_output
    kinds = nn.Linear | nn.Embedding | Output | MaskedLanguageModelHead
    # A module may have several names; the manifest has the name of its weight.
    named = dict(model.named_modules(remove_duplicate=False))
    exempt = {id(module) for name, module in named.items() if name in kept}
    made: dict[tuple[int, int, int | None], RoundedWeight] = {}
    for name, module in model.named_modules():
        if not isinstance(module, kinds) or id(module) in exempt:
            continue
        scheme = schemes.embedding
        if isinstance(module, nn.Linear) or (isinstance(module, Output) and not tied):
            scheme = schemes.products[_graph(name, schemes)]
        weight = module.weight.detach()
        key = weight.data_ptr(), scheme.bits, scheme.block  # tied weights are rounded once
        if key not in made:
            made[key] = RoundedWeight.nearest(weight, scheme.bits, scheme.block)
        module.weight = made[key]
        if not isinstance(module, nn.Embedding):
            module.register_forward_pre_hook(_rounds_inputs(scheme))


def _graph(name: str, schemes: Schemes) -> str:
    if "decoder" not in schemes.products:
        return "encoder"
    of_source = name.endswith(("cross_attention.key", "cross_attention.value"))
    return "encoder" if name.startswith("encoder.") or of_source else "decoder"


_OF_INTEGERS = (
    *(Tensor.as_subclass, Tensor.data_ptr, Tensor.size, Tensor.dim, Tensor.__len__),
    *(getattr(Tensor, name).__get__ for name in ("shape", "device", "grad_fn", "requires_grad")),
)
"""Functions that need no numbers in float32."""


class RoundedWeight(Tensor):
    """A weight [outputs, inputs] of symmetric integers, which operators read as float32.

    Linear maps and tables multiply what they read by the scales, part by part; all other operators
    read a float32 copy.
    """

    _is_param = True  # torch.nn.Parameter recognizes parameters by it
    scales: Tensor
    """[outputs, blocks, 1]."""
    block: int
    """The number of inputs that share a scale."""

    @classmethod
    def nearest(cls, weight: Tensor, bits: int, block: int | None) -> RoundedWeight:
        """Round a weight."""
        integers, scales = torch.empty(weight.shape, dtype=torch.int8), list[Tensor]()
        rows = max(1, NUMBERS_AT_ONCE // weight.shape[1])
        for own, result in zip(torch.split(weight, rows), torch.split(integers, rows), strict=True):
            rounded, scale = _nearest(own, bits, block)
            result.copy_(rounded)
            scales.append(scale)
        made = integers.as_subclass(cls)
        made.scales, made.block = torch.cat(scales), block or weight.shape[1]
        return made

    def numbers(self, rows: Tensor | slice = slice(None)) -> Tensor:
        """Compute the numbers of some outputs in float32."""
        integers = self.as_subclass(Tensor)[rows].float()
        scales = self.scales[rows]
        if scales.shape[-2] == 1:
            return integers.mul_(scales[..., 0])
        scales = scales[..., 0].repeat_interleave(self.block, -1)
        return integers.mul_(scales[..., : integers.shape[-1]])

    def __deepcopy__(self, memo: Any) -> RoundedWeight:
        return self  # nothing changes it

    def parts(self) -> Iterator[Tensor]:
        """Compute the numbers of some outputs after the other."""
        outputs, inputs = self.shape
        rows = max(1, NUMBERS_AT_ONCE // inputs)
        return (self.numbers(slice(first, first + rows)) for first in range(0, outputs, rows))

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in _OF_INTEGERS:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **kwargs)
        if func is Tensor.dtype.__get__:  # type: ignore[attr-defined]
            return torch.float32
        if func is nn.functional.linear:
            return _product(*args, **kwargs)
        if func is nn.functional.embedding and isinstance(args[1], cls):
            return args[1].numbers(args[0])
        args, kwargs = tree_map(lambda x: x.numbers() if isinstance(x, cls) else x, (args, kwargs))
        return func(*args, **kwargs)


def _product(input: Tensor, weight: RoundedWeight, bias: Tensor | None = None) -> Tensor:  # noqa: A002 (the name in PyTorch)
    return linear_in_parts(input, len(weight), weight.parts(), bias)


def linear_in_parts(
    x: Tensor, outputs: int, parts: Iterable[Tensor], bias: Tensor | None = None
) -> Tensor:
    """Compute x [..., K] @ weight [N, K] + bias.

    Args:
        parts: the weight, some outputs [n, K] after the other
    """
    product, done = x.new_empty((*x.shape[:-1], outputs)), 0
    for part in parts:
        product[..., done : done + len(part)] = nn.functional.linear(x, part)
        done += len(part)
    return product if bias is None else product.add_(bias)


def _nearest(weight: Tensor, bits: int, block: int | None) -> tuple[Tensor, Tensor]:
    outputs, inputs = weight.shape
    size, limit = block or inputs, 2 ** (bits - 1) - 1
    blocks = nn.functional.pad(weight, (0, -inputs % size)).view(outputs, -1, size)
    largest = blocks.abs().amax(-1, keepdim=True)
    largest[largest == 0] = 1
    best, scales = torch.zeros_like(blocks), largest / limit
    least = torch.full_like(largest, torch.inf)
    for clipped_at in CLIPPED_AT if bits == 4 else CLIPPED_AT[:1]:
        scale = largest * (clipped_at / limit)
        integers = (blocks / scale).round().clamp(-limit, limit)
        error = (integers * scale - blocks).square().sum(-1, keepdim=True)
        best = torch.where(error < least, integers, best)
        scales = torch.where(error < least, scale, scales)
        least = torch.minimum(error, least)
    return best.view(outputs, -1)[:, :inputs], scales


def _rounds_inputs(scheme: Scheme) -> Callable[[nn.Module, Any], tuple[Tensor]]:
    form = scheme.form(None)

    def hook(module: nn.Module, arguments: tuple[Tensor]) -> tuple[Tensor]:
        (x,) = arguments
        rows = form.round_inputs(x.reshape(-1, x.shape[-1]).numpy())
        return (torch.from_numpy(rows).view(x.shape),)

    return hook


def _round_to_half(model: nn.Module, dtype: torch.dtype) -> None:
    def narrow(x: Tensor) -> Tensor:
        """Round numbers within the range; bundles keep others in fp32."""
        rounded: Tensor = x.to(dtype).to(x.dtype)
        return torch.where(rounded.isfinite(), rounded, x)

    def hook(module: nn.Module, arguments: Any, output: Any) -> Any:
        return narrow(output) if isinstance(output, Tensor) else output

    made: dict[int, nn.Parameter] = {}
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            if id(parameter) not in made:
                made[id(parameter)] = nn.Parameter(narrow(parameter.data), requires_grad=False)
            setattr(module, name, made[id(parameter)])
        module.register_forward_hook(hook)
