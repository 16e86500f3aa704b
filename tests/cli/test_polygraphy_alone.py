"""`dragoman inspect --polygraphy` of encoders and decoders alone: inputs are what their graphs get,
and what the decoder chose is what the model generates."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnxruntime
import pytest
import torch
import transformers
from polygraphy.json import load_json

from dragoman import api
from dragoman.optimize.step_inputs import record_steps
from dragoman.runtime import load, read_bundle

SIZES: dict[str, Any] = {
    "vocab_size": 29,
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
}


@pytest.mark.parametrize("pairs", [False, True])
def test_of_an_encoder(pairs: bool, tmp_path: Path) -> None:
    torch.manual_seed(0)
    more: dict[str, Any] = {"intermediate_size": 40, "max_position_embeddings": 13}
    config = transformers.BertConfig(**SIZES, **more)
    head = transformers.BertForQuestionAnswering if pairs else transformers.BertModel
    head(config).save_pretrained(tmp_path / "checkpoint")
    (tmp_path / "checkpoint" / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n")
    bundle = api.export(tmp_path / "checkpoint", tmp_path / "bundle").directory
    written = api.write_polygraphy(bundle, tmp_path / "probe")
    assert (written.rows, written.steps) == (2, ())
    (feed,) = load_json(str(tmp_path / "probe" / "encoder-inputs.json"))
    assert set(feed) == {"source", "source_mask"} | ({"token_type"} if pairs else set())
    assert feed["source"].shape == (2, 13)
    if pairs:
        assert feed["token_type"].tolist() == [[0] * 7 + [1] * 6] * 2
    onnxruntime.InferenceSession(bundle / "encoder.onnx").run(None, feed)
    script = (tmp_path / "probe" / "commands.sh").read_text(encoding="utf-8")
    assert "decoder" not in script and "--trt-min-shapes source:[1,1]" in script.replace("'", "")


def test_of_a_decoder(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = transformers.GPT2LMHeadModel(
        transformers.GPT2Config(
            vocab_size=29,
            n_positions=24,
            n_embd=24,
            n_layer=2,
            n_head=3,
            bos_token_id=1,
            eos_token_id=28,
            initializer_range=0.3,
        )
    )
    model.save_pretrained(tmp_path / "checkpoint")
    bundle = api.export(tmp_path / "checkpoint", tmp_path / "bundle").directory
    prompts = [[3, 4, 5], [6, 7, 8]]
    with load(bundle) as loaded:
        found = loaded.generate(prompts, max_new_tokens=13)
    read = [[*prompt, *result.tokens] for prompt, result in zip(prompts, found, strict=True)]
    assert sorted(map(len, read)) == [9, 16]  # the end token's row goes on to be decoded
    session = onnxruntime.InferenceSession(bundle / "decoder.onnx")
    inputs = record_steps(read_bundle(bundle), sources=prompts)
    assert inputs.encoder is None and list(inputs.decoder) == [0, 1, 8, 15]
    for step, feed in inputs.decoder.items():
        assert feed["position"].tolist() == [step, step]
        (chosen,) = session.run(["next_token"], feed)
        for row, tokens in enumerate(read):
            assert tokens[step : step + 1] in ([], [feed["token"][row, 0]])
            assert step < 2 or tokens[step + 1 : step + 2] in ([], [chosen[row]])
    written = api.write_polygraphy(bundle, tmp_path / "probe")
    assert (written.rows, written.steps) == (2, (0, 1, 8, 15))
    script = (tmp_path / "probe" / "commands.sh").read_text(encoding="utf-8")
    assert "encoder" not in script and "build engines" in script
