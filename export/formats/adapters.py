"""Merging LoRA adapters of PEFT into the weights of their base.

As in PEFT's model before `merge_and_unload`, tables that were tied are separate if an adapter
changes one of them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dragoman.files.text_lines import printable
from dragoman.reference_model import CheckpointError

from .adapter_config import ALL_LINEAR, AdapterConfig
from .contents import listed
from .tensor_files import Weights, read_file

PREFIX = "base_model.model."
MATRIX = re.compile(r"(.+)\.lora_(A|B|embedding_A|embedding_B)(?:\.(weight|bias))?")
"""The name of a matrix of an adapter, or of the bias of its second one."""


@dataclass(frozen=True)
class BaseLayout:
    """The names and layouts of a base's weights."""

    name_of: Callable[[str], str]
    """Name of a weight in an adapter, whose model may have no head or another one -> name in the
    base."""
    tables: tuple[str, ...] = ()
    """Names of the token tables that the configuration may tie, the output's last."""
    transposed: tuple[str, ...] = ()
    """Endings of the modules whose weights are stored as [in, out]."""


def merge_adapters(
    adapters: Sequence[AdapterConfig], weights: Weights, layout: BaseLayout, notes: list[str]
) -> bool:
    """Merge adapters into weights with the names of `layout`, in place and in their order.

    Return whether the output's table has become separate from those that it was tied to; `notes`
    get a sentence if a tied table becomes separate.
    """
    if not adapters:
        return False
    stored = [name for name in layout.tables if name in weights]
    absent = [name for name in layout.tables if stored and name not in weights]
    weights |= dict.fromkeys(absent, weights[stored[0]])
    tied = [name for name in (*stored, *absent) if _same(weights[name], weights[stored[0]])]
    before = {name: weights[name] for name in tied}
    for adapter in adapters:
        _merge(adapter, weights, layout, tied)
    used = [name for name in tied if name.rpartition("shared.weight")[1] == ""]
    untied = any(not _same(weights[name], weights[used[0]]) for name in used)
    changed = [name for name in tied if weights[name] is not before[name]]
    if changed and not set(changed) & set(used):
        raise CheckpointError(
            adapters[-1].weights,
            [
                f"{changed[0]}: neither this model nor PEFT's uses that table itself, but "
                f"{listed(used)}: adapt these"
            ],
        )
    for name in set(tied) - set(used) if untied else absent:
        del weights[name]
    if untied:
        notes.append(
            f"the adapter changes {listed(changed)}, which the base ties to other tables: they are "
            "separate, as in PEFT's model before merge_and_unload(), which changes all of them"
        )
    return untied


def _same(one: Tensor, other: Tensor) -> bool:
    return one is other or one.float().equal(other.float())


def _merge(
    adapter: AdapterConfig, weights: Weights, layout: BaseLayout, tied: Sequence[str]
) -> None:
    problems: list[str] = []
    matrices: dict[str, dict[str, Tensor]] = {}
    for key, tensor in read_file(adapter.weights).items():
        name = key.removeprefix(PREFIX)
        found = MATRIX.fullmatch(name)
        if found:
            part = found[2] if found[3] != "bias" else "bias"
            matrices.setdefault(found[1], {})[part] = tensor
        elif ".lora_" in name:
            problems.append(f"{_shown(name)}: this part of an adapter is not known")
        else:
            _replace(name, tensor, adapter, weights, layout, tied, problems)
    problems += _other_modules(adapter, set(matrices), weights, layout)
    for module, parts in matrices.items():
        problem = _add(module, parts, adapter, weights, layout)
        if problem:
            problems.append(f"{_shown(module)}: {problem}")
    if problems:
        raise CheckpointError(adapter.weights, problems)


def _replace(
    stored: str,
    tensor: Tensor,
    adapter: AdapterConfig,
    weights: Weights,
    layout: BaseLayout,
    tied: Sequence[str],
    problems: list[str],
) -> None:
    plain = stored.replace(".base_layer.", ".").replace(".modules_to_save.", ".")
    name = layout.name_of(plain)
    if name not in weights:
        hint = (
            "; save the base with its head first (save_pretrained) and build that"
            if adapter.saves(plain.rpartition(".")[0])
            else ""
        )
        problems.append(f"{_shown(stored)}: the base has no such weight{hint}")
    elif weights[name].shape != tensor.shape:
        shapes = f"expected {list(weights[name].shape)} as in the base, found {list(tensor.shape)}"
        hint = "; resize the base to that vocabulary first" if name in layout.tables else ""
        problems.append(f"{_shown(stored)}: {shapes}{hint}")
    elif not _same(weights[name], tensor):
        # PEFT copies into the tied parameter itself, but saves a module as one of its own.
        alone = name not in tied or adapter.saves(plain.rpartition(".")[0])
        weights |= dict.fromkeys([name] if alone else tied, tensor)


def _add(
    module: str,
    parts: dict[str, Tensor],
    adapter: AdapterConfig,
    weights: Weights,
    layout: BaseLayout,
) -> str | None:
    name, bias = (layout.name_of(f"{module}.{part}") for part in ("weight", "bias"))
    base = weights.get(name)
    if base is None:
        return "the base has no such module"
    embedding = "embedding_A" in parts or "embedding_B" in parts
    names = ("embedding_A", "embedding_B") if embedding else ("A", "B")
    if not set(names) <= parts.keys():
        return f"expected both matrices, lora_{' and lora_'.join(names)}, found one"
    first, second = (parts[part].float() for part in names)
    rank = adapter.rank_of(module)
    if len(first) != rank or second.dim() < 2 or second.shape[1] != rank:
        return f"expected matrices of rank {rank}, found {list(first.shape)}, {list(second.shape)}"
    delta = torch.tensordot(second.reshape(len(second), -1)[:, :rank], first, 1)
    if embedding or module.endswith(layout.transposed or ("\0",)):
        delta = delta.mT
    if delta.shape != base.shape:
        return f"expected a delta of {list(base.shape)} as in the base, found {list(delta.shape)}"
    weights[name] = base.float() + delta * adapter.scaling(module)
    if "bias" in parts:
        if bias not in weights or weights[bias].shape != parts["bias"].shape:
            return "the base has no bias for that of lora_B"
        weights[bias] = weights[bias].float() + parts["bias"].float() * adapter.scaling(module)
    return None


def _other_modules(
    adapter: AdapterConfig, stored: set[str], weights: Weights, layout: BaseLayout
) -> list[str]:
    unnamed = sorted(module for module in stored if not adapter.adapts(module))
    problems = [f"target_modules does not name {listed(unnamed)}"] if unnamed else []
    if isinstance(adapter.targets, str) and adapter.targets.lower() == ALL_LINEAR:
        return problems  # which modules are linear is not known here
    found = {layout.name_of(f"{module}.weight") for module in stored}
    ends = {module: layout.name_of(f"{module}.weight").removesuffix(".weight") for module in stored}
    prefixes = {m.removesuffix(end) for m, end in ends.items() if m.endswith(end)}
    missing = []
    for name, weight in weights.items():
        if weight.dim() < 2 or name in found or not name.endswith(".weight"):
            continue
        module = name.removesuffix(".weight")
        if any(adapter.adapts(prefix + module) for prefix in {"", *prefixes}):
            missing.append(module)
    if missing:
        problems.append(f"target_modules names {listed(missing)}, of which there are no weights")
    return problems


def _shown(name: str) -> str:
    return printable(name)[:100]
