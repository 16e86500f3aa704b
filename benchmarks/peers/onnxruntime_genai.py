"""ONNX Runtime's generate() API (onnxruntime-genai), with a graph exported by Optimum.

Its model builder does not support GPT-2. It loads without PyTorch.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from .interface import Batch, Generate, Rows, import_library

CACHES = {
    "inputs": {
        "input_ids": "input_ids",
        "attention_mask": "attention_mask",
        "position_ids": "position_ids",
        "past_key_names": "past_key_values.%d.key",
        "past_value_names": "past_key_values.%d.value",
    },
    "outputs": {
        "logits": "logits",
        "present_key_names": "present.%d.key",
        "present_value_names": "present.%d.value",
    },
}


def prepare(source: Path, directory: Path, *, mode: str) -> Path:
    """Export a GPT-2 checkpoint, and describe its decoder with growing caches to the library."""
    from . import optimum_onnx

    graph = optimum_onnx.prepare(source, directory, mode=mode, kind="CausalLM")
    config = json.loads((source / "config.json").read_text(encoding="utf-8"))
    decoder = {
        "filename": "model.onnx",
        "session_options": {},
        "hidden_size": config["n_embd"],
        "head_size": config["n_embd"] // config["n_head"],
        "num_attention_heads": config["n_head"],
        "num_key_value_heads": config["n_head"],
        "num_hidden_layers": config["n_layer"],
    }
    same = {name: config[name] for name in ("bos_token_id", "eos_token_id", "vocab_size")}
    description = {
        "model": {
            "type": "llama",  # any name of a decoder with a cache per layer
            **same,
            "pad_token_id": config["eos_token_id"],
            "context_length": config["n_positions"],
            "decoder": decoder | CACHES,
        },
        "search": {"past_present_share_buffer": False, "max_length": config["n_positions"]},
    }
    (graph / "genai_config.json").write_text(json.dumps(description), encoding="utf-8")
    return graph


def load(directory: Path, threads: int) -> Generate:
    """Load what `prepare` wrote; every row gets exactly the requested new tokens."""
    library = import_library("onnxruntime_genai")
    config = library.Config(str(directory))
    options = {"session_options": {"intra_op_num_threads": threads}}
    config.overlay(json.dumps({"model": {"decoder": options}}))
    model = library.Model(config)

    def generate(batch: Batch) -> Rows:
        number, length = len(batch.sources), len(batch.sources[0])
        parameters = library.GeneratorParams(model)
        exactly = dict.fromkeys(("min_length", "max_length"), length + batch.new_tokens)
        parameters.set_search_options(batch_size=number, num_beams=1, do_sample=False, **exactly)
        generator = library.Generator(model, parameters)
        generator.append_tokens(np.array(batch.sources, np.int32))
        while not generator.is_done():
            generator.generate_next_token()
        rows = [generator.get_sequence(row) for row in range(number)]
        return [row[length:].tolist() for row in rows]

    return generate
