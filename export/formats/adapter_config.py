"""Directories of LoRA adapters (Hu et al. 2021) of PEFT: settings, and the file of their weights.

It imports no heavy libraries, so that the command line refuses a wrong adapter at once.
"""
# ruff: noqa: SIM905

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from dragoman.errors import DragomanError, shown
from dragoman.files.regular_files import check_regular
from dragoman.files.strict_json import read_json_object

from .contents import KnownSettings, refuse_broken_links

ADAPTER_FILE = "adapter_config.json"
ADAPTER_WEIGHTS = ("adapter_model.safetensors", "adapter_model.bin")
"""Files of an adapter's weights, in order of preference."""

KEYS = KnownSettings(
    read=frozenset(
        """
peft_type r lora_alpha rank_pattern alpha_pattern use_rslora target_modules exclude_modules
layers_to_transform layers_pattern modules_to_save bias lora_bias init_lora_weights
base_model_name_or_path
""".split()
    ),
    # The kind of a layer, not fan_in_fan_out, says whether its weight is transposed. The settings
    # of initializations count only with init_lora_weights, and bias only says what is stored.
    harmless=frozenset(
        """
task_type inference_mode auto_mapping peft_version revision lora_dropout fan_in_fan_out
megatron_core runtime_config loftq_config eva_config corda_config lora_ga_config qalora_group_size
""".split()
    ),
    refused={
        **dict.fromkeys(("use_dora", "use_qalora", "use_bdlora"), (False,)),
        **dict.fromkeys(
            """
alora_invocation_tokens arrow_config kasa_config monteclora_config velora_config megatron_config
layer_replication target_parameters trainable_token_indices
""".split(),
            (),
        ),
        "ensure_weight_tying": (False,),
    },
)
CHANGES_BASE = re.compile("pissa.*|olora|corda|loftq|lora_ga")
"""Initializations that also change the weights of the base, which the adapter does not store."""

UNMERGED = ("PREFIX_TUNING", "PROMPT_TUNING", "P_TUNING", "MULTITASK_PROMPT_TUNING", "CPT")
"""Types of adapters that add inputs, which cannot be merged into weights."""

ALL_LINEAR = "all-linear"

N = TypeVar("N", int, float)


@dataclass(frozen=True, kw_only=True)
class AdapterConfig:
    """A LoRA adapter, whose delta of a module's weight is `scaling * B @ A`."""

    directory: Path
    weights: Path
    base: str | None
    """Name or path of the model that it was trained on; None: not stated."""
    rank: int
    alpha: float
    """Rank and alpha of modules that the patterns do not name."""
    rank_pattern: Mapping[str, int]
    alpha_pattern: Mapping[str, float]
    """Regular expressions of names of modules -> rank and alpha."""
    rank_stabilized: bool
    """Whether the scaling is alpha / sqrt(rank) in place of alpha / rank."""
    targets: str | tuple[str, ...]
    """Names of the adapted modules or their endings, or a regular expression."""
    excluded: str | tuple[str, ...] = ()
    """Modules that are not adapted, in the same form."""
    layers: tuple[int, ...] | None = None
    """Numbers of the adapted layers; None: all."""
    layer_names: tuple[str, ...] = ()
    """Names of lists of layers, regular expressions; empty: any name."""
    saved: tuple[str, ...] = ()
    """Modules that are stored whole in place of the base's."""
    notes: tuple[str, ...] = field(default=(), repr=False)
    """Sentences on settings that are not known."""

    @property
    def name(self) -> str:
        """The name of the directory."""
        return self.directory.resolve().name

    def sha256(self) -> str:
        """Return the SHA-256 of the file of weights, in hex."""
        with self.weights.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()

    def rank_of(self, module: str) -> int:
        """Return the rank of a module's matrices."""
        return _by_pattern(self.rank_pattern, module, self.rank)

    def scaling(self, module: str) -> float:
        """Return the factor of a module's delta."""
        alpha, rank = _by_pattern(self.alpha_pattern, module, self.alpha), self.rank_of(module)
        return alpha / (math.sqrt(rank) if self.rank_stabilized else rank)

    def saves(self, module: str) -> bool:
        """Return whether a module is stored whole."""
        return any(re.match(rf"(^|.*\.){name}($|\..*)", module) for name in self.saved)

    def adapts(self, module: str) -> bool:
        """Return whether the settings name a module as adapted."""
        if _named(self.excluded, module) or self.saves(module):
            return False
        if not _named(self.targets, module) or self.layers is None:
            return _named(self.targets, module)
        if isinstance(self.targets, str) or module in self.targets:  # layers count for endings only
            return True
        patterns = self.layer_names or (r"[^.]*",)
        found = (re.match(rf"(?:^|.*?\.){p}\.(\d+)\.", module) for p in patterns)
        first = next((match for match in found if match), None)
        return first is not None and int(first[1]) in self.layers


def _named(names: str | tuple[str, ...], module: str) -> bool:
    if isinstance(names, str):
        return names.lower() == ALL_LINEAR or re.fullmatch(names, module) is not None
    return any(module == name or module.endswith(f".{name}") for name in names)


def _by_pattern(patterns: Mapping[str, N], module: str, default: N) -> N:
    for pattern, value in patterns.items():
        if re.match(rf"(.*\.)?({pattern})$", module):
            return value
    return default


def read_adapter(directory: Path) -> AdapterConfig:
    """Read the settings of an adapter; a `DragomanError` lists all problems."""
    refuse_broken_links(directory)
    path = directory / ADAPTER_FILE
    if not path.exists():
        found = "no such directory" if not directory.exists() else f"no {ADAPTER_FILE}"
        raise DragomanError(
            f"{directory}: expected the directory of an adapter, with {ADAPTER_FILE} and "
            f"{' or '.join(ADAPTER_WEIGHTS)}, found {found}"
        )
    values = read_json_object(path)
    _refuse_others(path, values)
    weights = next((p for name in ADAPTER_WEIGHTS if (p := directory / name).exists()), None)
    if weights is None:
        raise DragomanError(f"{directory}: expected {' or '.join(ADAPTER_WEIGHTS)}, found neither")
    check_regular(weights)
    problems: list[str] = []

    def take(name: str, default: Any, fits: Callable[[Any], bool], expected: str) -> Any:
        value = values.get(name)
        if value in (None, "", [], {}):
            return default
        if fits(value):
            return tuple(value) if isinstance(value, list) else value
        problems.append(f"{name}: expected {expected}, found {shown(value)}")
        return default

    expressions = "names of modules or a regular expression"
    adapter = AdapterConfig(
        directory=directory,
        weights=weights,
        base=take("base_model_name_or_path", None, lambda v: isinstance(v, str), "a text"),
        rank=take("r", 8, _is_rank, "an integer of at least 1"),
        alpha=take("lora_alpha", 8, _is_number, "a number"),
        rank_pattern=take("rank_pattern", {}, _all_by_pattern(_is_rank), "ranks by modules"),
        alpha_pattern=take("alpha_pattern", {}, _all_by_pattern(_is_number), "numbers by modules"),
        rank_stabilized=take("use_rslora", False, lambda v: isinstance(v, bool), "true or false"),
        targets=take("target_modules", (), _are_targets, expressions),
        excluded=take("exclude_modules", (), _are_targets, expressions),
        layers=_as_tuple(take("layers_to_transform", None, _are_layers, "numbers of layers")),
        layer_names=_as_tuple(take("layers_pattern", (), _are_expressions, expressions)),
        saved=_as_tuple(take("modules_to_save", (), _are_expressions, expressions)),
        notes=tuple(KEYS.notes(f"{directory.name}/{ADAPTER_FILE}", values)),
    )
    if problems:
        raise DragomanError(f"{path}: {'; '.join(problems)}")
    return adapter


def _is_rank(value: object) -> bool:
    return type(value) is int and value >= 1


def _is_number(value: object) -> bool:
    return type(value) in (int, float)


def _are_layers(value: object) -> bool:
    return all(type(number) is int for number in (value if isinstance(value, list) else [value]))


def _are_expressions(value: object) -> bool:
    return all(map(_is_expression, value if isinstance(value, list) else [value]))


def _are_targets(value: object) -> bool:
    if isinstance(value, list):  # endings of names, which are compared as they are
        return all(isinstance(name, str) for name in value)
    return _is_expression(value)


def _is_expression(value: object) -> bool:
    try:
        return isinstance(value, str) and re.compile(value) is not None
    except re.error:
        return False


def _all_by_pattern(fits: Callable[[object], bool]) -> Callable[[object], bool]:
    return lambda value: (
        isinstance(value, dict)
        and all(map(_is_expression, value))
        and all(map(fits, value.values()))
    )


def _as_tuple(value: Any) -> Any:
    return value if value is None or isinstance(value, tuple) else (value,)


def with_own(directory: Path, adapters: Sequence[AdapterConfig]) -> tuple[AdapterConfig, ...]:
    """Return the adapter in a base's directory, as transformers does, and the others."""
    own = [read_adapter(directory)] if (directory / ADAPTER_FILE).exists() else []
    return (*own, *adapters)


def refuse_alone(directory: Path) -> None:
    """Raise a `DragomanError` for a directory that has an adapter in place of a model."""
    if not (directory / ADAPTER_FILE).exists():
        return
    base = read_json_object(directory / ADAPTER_FILE).get("base_model_name_or_path") or "BASE"
    raise DragomanError(
        f"{directory}: expected a checkpoint, found an adapter without its base; build the base "
        f"with it: dragoman build {base!s:.100} --adapter {directory}"
    )


def _refuse_others(path: Path, values: Mapping[str, Any]) -> None:
    kind = values.get("peft_type")
    if kind != "LORA":
        hint = "" if kind in UNMERGED else f"; {_merge_first()}"
        raise DragomanError(
            f"{path}: peft_type: expected LORA (other adapters are not read), found "
            f"{shown(kind)}{hint}"
        )
    problems = KEYS.unsupported(values)
    start = str(values.get("init_lora_weights")).lower()
    if CHANGES_BASE.fullmatch(start):
        problems.append(
            f"init_lora_weights: {shown(start)} also changes the base, which the adapter does not "
            "store; PEFT converts it (save_pretrained(path_initial_model_for_weight_conversion=...)"
            ")"
        )
    if problems:
        raise DragomanError(f"{path}: {'; '.join(problems)}; {_merge_first()}")


def _merge_first() -> str:
    return (
        "merge it in PEFT with merge_and_unload() and save_pretrained(DIR), and build DIR without "
        "--adapter"
    )
