"""Seeded random weights whose greedy output varies with the source, in Hugging Face's format.

All tools in a comparison read the same checkpoint. Outputs end early only where documented.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file
from torch import Tensor

from dragoman.errors import DragomanError
from dragoman.export.families import FAMILIES
from dragoman.export.families.bart import LOGITS_BIAS, POSITIONS, SHARED, TOKENS
from dragoman.export.families.hugging_face import load_hugging_face
from dragoman.reference_model import ModelConfig, NoMemory, Transformer

from ..peers.ctranslate2_runtime import prepare_whisper
from ..peers.interface import import_library, silence
from .shapes import ENCODERS, LANGUAGE_MODELS, SHAPES, WHISPERS, config_of

PROBES, STEPS = 16, 48
"""Sources, and tokens of each, whose largest logits are looked at."""
SEED = 1
Allowed = Callable[[list[int]], NDArray[np.int32]]
"""Returns the tokens that a source allows."""
END = "<|endoftext|>"
LONGEST = 32
"""Tokens of outputs of large models, about those of a sentence."""
SHARPNESS = 4.0
SENTENCE = range(1000, 1032)
"""The tokens that a random Whisper model hears; none of them is suppressed."""
DOMINANCE = 30.0
"""Of the positions of such a model over the tokens that its decoder reads."""


def random_model(config: ModelConfig, *, seed: int, sharpness: float = SHARPNESS) -> Transformer:
    """Return a model in evaluation mode, the same for the same seed.

    The model never selects its end token, whose logit is 0 without a logits bias, far below the
    largest logit of any realistic vocabulary. `sharpness` is a factor of queries and keys; rounding
    errors grow with it from layer to layer, so deep models need less.
    """
    torch.manual_seed(seed)
    model = Transformer(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            # With PyTorch's initialization a model with tied embeddings repeats one token: the
            # residual stream keeps pointing at the input token. Gains of both signs prevent that;
            # sharper attention makes the output depend on the inputs.
            if name.endswith("gain"):
                parameter.normal_()
            elif "query" in name or "key" in name:
                parameter.mul_(sharpness)
            elif parameter.dim() == 2 and "embedding" not in name:
                parameter.mul_(0.5)
        model.output.weight[config.end_token_id] = 0
    return model


def write_random_checkpoint(
    config: dict[str, Any],
    directory: Path,
    *,
    seed: int,
    sharpness: float = SHARPNESS,
    generation: Mapping[str, Any] | None = None,
) -> None:
    """Write a checkpoint of Marian, BART or Whisper, the same for the same seed.

    `config` has the fields of its `config.json`, `generation` those of `generation_config.json`
    other than tokens.
    """
    family = FAMILIES[config["model_type"]]
    model = random_model(family.config(config), seed=seed, sharpness=sharpness)
    rename = family.weight_name
    weights = {rename(name): value.detach() for name, value in model.named_parameters()}
    for name in POSITIONS.values():
        if config["model_type"] == "marian":  # computed by the readers
            del weights[name]
        if config["model_type"] == "bart":  # the first two rows are not used
            weights[name] = torch.cat([torch.zeros_like(weights[name][:2]), weights[name]])
    if LOGITS_BIAS in weights:
        weights[LOGITS_BIAS] = weights[LOGITS_BIAS][None]
    # Tied embeddings are stored once, under Hugging Face's name for the shared table.
    if TOKENS["encoder"] in weights:
        weights[SHARED] = weights.pop(TOKENS["encoder"])
    tokens = ("decoder_start_token_id", "eos_token_id", "pad_token_id")
    settings = {name: config[name] for name in tokens} | dict(generation or {})
    write_checkpoint(directory, weights, config=config, generation_config=settings)


def write_checkpoint(directory: Path, weights: dict[str, Tensor], **files: dict[str, Any]) -> None:
    """Write the weights, and JSON files by their names without suffix."""
    directory.mkdir(parents=True, exist_ok=True)
    save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})
    for name, values in files.items():
        (directory / f"{name}.json").write_text(json.dumps(values, indent=1) + "\n", "utf-8")


def write_random_text_model(
    shape: str, directory: Path, *, vocab_size: int | None = None, seed: int = SEED
) -> None:
    """Write a checkpoint in one of `SHAPES`, the same for the same seed."""
    config, sizes = config_of(shape, vocab_size=vocab_size), SHAPES[shape]
    write_random_checkpoint(config, directory, seed=seed, sharpness=sizes.sharpness)


def write_ending_text_model(
    shape: str, directory: Path, *, vocab_size: int, mean_length: int
) -> None:
    """Write a checkpoint in one of `SHAPES` whose outputs end after a mean number of tokens.

    Lengths are spread widely, and nearly the same for all tools.
    """
    write_random_text_model(shape, directory, vocab_size=vocab_size)
    end_outputs(directory, vocab_size, mean_length)


def end_outputs(
    directory: Path, vocab_size: int, mean_length: int, allowed: Allowed | None = None
) -> None:
    """Let the outputs of a random checkpoint end after a mean number of tokens, in place.

    A bias makes the end token's logit, a constant, the largest at some steps. Outputs are cut after
    48 tokens to compute the mean.
    """
    file = directory / "model.safetensors"

    def set_bias(value: float) -> Transformer:
        weights = load_file(file)
        weights[LOGITS_BIAS] = weights[LOGITS_BIAS].clone()
        weights[LOGITS_BIAS][0, end] = value
        save_file(weights, file, metadata={"format": "pt"})
        return load_hugging_face(directory)

    end = load_hugging_face(directory).config.end_token_id
    model, generator = set_bias(0), np.random.default_rng(0)
    sources = generator.integers(1, vocab_size - 1, (PROBES, 32)).tolist()
    refused = torch.zeros(PROBES, vocab_size)
    for row, source in zip(refused, sources, strict=True):
        if allowed is not None:
            row.fill_(-torch.inf)
            row[torch.from_numpy(allowed(source)).long()] = 0
    read = torch.full((PROBES, 1), model.config.start_token_id)
    start, columns = torch.zeros(PROBES, dtype=torch.long), []
    with torch.inference_mode():
        hidden = model.decoding(sources)
        for _ in range(STEPS):
            best = (model.output(hidden(read, start, NoMemory())[:, -1]) + refused).max(-1)
            columns.append(best.values.numpy())
            read = torch.cat([read, best.indices[:, None]], 1)
    largest, last = np.stack(columns, axis=1), np.full((PROBES, 1), -np.inf)  # [outputs, steps]

    def distance(bias: float) -> float:
        """Compute the error of the mean; the larger a bias is, the earlier outputs end."""
        ends = (np.hstack([largest, last]) < bias).argmax(axis=1) + 1
        return abs(float(ends.mean()) - mean_length)

    set_bias(float(min(np.sort(largest, axis=None), key=distance)))


def write_random_large_model(shape: str, directory: Path) -> None:
    """Write a checkpoint in fp16, of Whisper, or of NLLB as Hugging Face's transformers does.

    It is the same for the same seed. NLLB never selects its end token, whose logit is 0.
    """
    silence()
    if shape in WHISPERS:
        from .real_models import whisper

        write_random_whisper_checkpoint(shape, directory, whisper("base"), torch.float16)
        return
    transformers = import_library("transformers")
    config = transformers.M2M100Config(**config_of(shape))
    torch.manual_seed(SEED)
    model = transformers.M2M100ForConditionalGeneration(config).half()
    with torch.no_grad():
        model.lm_head.weight[config.eos_token_id] = 0
    model.generation_config.max_length = LONGEST
    model.save_pretrained(directory)


def write_random_whisper(shape: str, directory: Path, *, like: Path) -> None:
    """Write what `write_random_whisper_checkpoint` does in CTranslate2's format."""
    silence()
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = Path(folder) / "checkpoint"
        write_random_whisper_checkpoint(shape, checkpoint, like)
        prepare_whisper(checkpoint, directory)


def write_random_whisper_checkpoint(
    shape: str, directory: Path, like: Path, dtype: torch.dtype = torch.float32
) -> None:
    """Write a checkpoint of Whisper that hears the same sentence in all audio.

    The embeddings of positions are large, and select one token after another. All else is random,
    and the same for the same seed.

    Args:
        like: a multilingual model in CTranslate2's format, whose tokenizer it gets
    """
    from .real_models import whisper_checkpoint

    whisper_checkpoint(like, directory)
    found = ("config", "generation_config", "preprocessor_config")
    files = {n: json.loads((directory / f"{n}.json").read_text("utf-8")) for n in found}
    if not files["generation_config"]["is_multilingual"]:  # such as tiny.en: shorter prompts
        raise DragomanError(f"{like}: expected a multilingual model, found one of English")
    config = files["config"] | WHISPERS[shape]
    files["config"] = config
    files["generation_config"]["alignment_heads"] = [[0, 0]]
    files["preprocessor_config"]["feature_size"] = config["num_mel_bins"]
    family = FAMILIES["whisper"]
    model = random_model(family.config(config), seed=SEED, sharpness=1)
    with torch.no_grad():
        tokens = torch.tensor([*SENTENCE, config["eos_token_id"]])
        named = {family.weight_name(name): value for name, value in model.named_parameters()}
        embeddings = named["model.decoder.embed_tokens.weight"]
        embeddings[config["eos_token_id"]].normal_(std=float(embeddings.std()))
        named["model.decoder.layer_norm.weight"].fill_(1)
        positions = named["model.decoder.embed_positions.weight"]
        last_of_prompt = 3  # after start, language, task and no timestamps
        positions[last_of_prompt:][: len(tokens)] = DOMINANCE * embeddings[tokens]
    weights = {name: value.detach().to(dtype) for name, value in named.items()}
    write_checkpoint(directory, weights, **files)


def write_random_language_model(shape: str, directory: Path) -> None:
    """Write a checkpoint of GPT-2, as Hugging Face's transformers does, the same for the same seed.

    Like `random_model`, it does not repeat one token, and never selects its end token, the last.
    """
    transformers = import_library("transformers")
    sizes = LANGUAGE_MODELS[shape]
    end = sizes["vocab_size"] - 1
    special = dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"), end)
    torch.manual_seed(SEED)
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes, **special))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith(("ln_1.weight", "ln_2.weight", "ln_f.weight")):
                parameter.normal_()
            elif name.endswith("c_attn.weight"):  # query, key and value side by side
                parameter[:, : 2 * sizes["n_embd"]] *= SHARPNESS
        model.transformer.wte.weight[end] = 0
    model.save_pretrained(directory)
    pieces = {f"t{index}": index for index in range(end)} | {END: end}
    files = {  # a dummy tokenizer, which some tools require even for token ids
        "vocab.json": json.dumps(pieces),
        "merges.txt": "#version: 0.2\n",
        "tokenizer_config.json": json.dumps({"tokenizer_class": "GPT2Tokenizer"}),
    }
    for name, text in files.items():
        (directory / name).write_text(text, encoding="utf-8")


def write_random_encoder(
    shape: str, directory: Path, *, like: Path, cross_encoder: bool = False
) -> None:
    """Write an encoder-only model in the format of sentence-transformers.

    It is the same for the same seed. Embeddings are normalized means, whatever the shape's own are.
    Files other than the weights are copied from a model with BERT's tokenizer.
    """
    silence()
    transformers = import_library("transformers")
    config = transformers.AutoConfig.for_model(**ENCODERS[shape], num_labels=1)
    torch.manual_seed(SEED)
    modules = ("modules.json", "1_Pooling", "*sentence*") if cross_encoder else ()
    ignored = shutil.ignore_patterns("*.safetensors", "config.json", *modules)
    shutil.copytree(like, directory, ignore=ignored)
    if cross_encoder:
        config.sentence_transformers = {"activation_fn": "torch.nn.modules.activation.Sigmoid"}
        model = transformers.AutoModelForSequenceClassification.from_config(config)
        with torch.no_grad():
            model.classifier.weight.mul_(20)  # scores far from 0.5
    else:
        model = transformers.AutoModel.from_config(config)
        pooling = {"word_embedding_dimension": config.hidden_size, "pooling_mode_mean_tokens": True}
        (directory / "1_Pooling" / "config.json").write_text(json.dumps(pooling), "utf-8")
    model.save_pretrained(directory)
