"""Models built around PyTorch's own `torch.nn.Transformer`, or its encoder and decoder.

Their owner writes a `config.json` beside the weights, with what the weights do not show: the number
of heads, the order of norms, the activation, whether embeddings are scaled, the special tokens, and
the names of the modules around the Transformer:

    {"model_type": "torch.nn.Transformer", "num_heads": 8, "norm_first": false,
     "activation": "relu", "scale_embedding": true, "positions": "sinusoidal",
     "pad_token_id": 1, "start_token_id": 2, "end_token_id": 3,
     "names": {"transformer": "transformer", "source_embedding": "src_tok_emb.embedding",
               "target_embedding": "tgt_tok_emb.embedding", "output": "generator"}}

`docs/families.md` says what each field means.
"""

from ..state_dict_family import StateDictFamily
from .loading import load_torch_transformer

TORCH_TRANSFORMER = StateDictFamily(
    "torch.nn.Transformer", "models around torch.nn.Transformer", load_torch_transformer
)

__all__ = ["TORCH_TRANSFORMER", "load_torch_transformer"]
