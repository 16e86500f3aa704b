"""The operators that a bundle's graphs may have: those that Dragoman writes, and what for.

A graph with any other is refused when its bundle is written and when it is read, before ONNX
Runtime sees it. An operator may be here if its work is bounded by the sizes of what it reads and
writes, it holds no graph of its own (as Loop, Scan and If do), and it opens no file.
"""

from __future__ import annotations

from collections.abc import Mapping

OPERATORS: Mapping[str, Mapping[str, str]] = {
    "": {
        "Abs": "int8 activations",
        "Add": "biases, residuals, positions",
        "ArgMax": "greedy choice",
        "Attention": "attention of neutral graphs, of encoders, of engines",
        "Cast": "masks, positions; changes of precision",
        "Clip": "distances of relative positions; range of fp16",
        "Concat": "shapes",
        "ConstantOfShape": "layer norm on the processor",
        "Conv": "front end of speech models",
        "CumSum": "positions of sources whose padding has none",
        "DequantizeLinear": "int8 and int4 weights",
        "Div": "shapes, int8 activations",
        "DynamicQuantizeLinear": "int8 activations that had one scale for a batch",
        "Equal": "padding without a position",
        "Expand": "masks",
        "Gather": "embeddings, the last query",
        "GatherElements": "the queries that are read",
        "GatherND": "greedy choice",
        "Gelu": "feed-forward",
        "Gemm": "heads of encoders",
        "InstanceNormalization": "layer norm on the processor",
        "LayerNormalization": "layer norm",
        "LessOrEqual": "causal mask",
        "LogSoftmax": "log-probability of the choice and of candidates",
        "MatMul": "projections",
        "Max": "int8 activations",
        "Mul": "gains, scales, gates",
        "Not": "padding without a position",
        "QuantizeLinear": "int8 activations",
        "RMSNormalization": "norm of T5",
        "Range": "positions",
        "ReduceL2": "normalized vectors",
        "ReduceMax": "greedy choice, pooling, int8 activations",
        "ReduceSum": "pooling",
        "Relu": "feed-forward",
        "Reshape": "heads",
        "Shape": "shapes",
        "Sigmoid": "feed-forward with SiLU",
        "Softmax": "attention spelled out for engines",
        "Squeeze": "shapes, masks",
        "Sub": "distances of relative positions",
        "Tanh": "feed-forward",
        "TensorScatter": "caches",
        "TopK": "candidates",
        "Transpose": "heads, tied embeddings",
        "Unsqueeze": "shapes, masks",
        "Where": "masks",
    },
    "com.microsoft": {
        "BiasGelu": "feed-forward",
        "DynamicQuantizeMatMul": "int8 projections of bundles of schema 1",
        "FastGelu": "feed-forward",
        "FusedMatMul": "logits from a tied embedding",
        "GatherBlockQuantized": "int4 embeddings",
        "GroupQueryAttention": "self-attention of the decoder",
        "MatMulIntegerToFloat": "int8 projections",
        "MatMulNBits": "int4 projections",
        "MultiHeadAttention": "attention over a complete source",
        "QGemm": "int8 logits from a tied embedding",
        "SkipLayerNormalization": "layer norm of bundles of schema 1",
    },
}
"""Purposes by domain and operator. "" is ONNX's own domain, com.microsoft ONNX Runtime's."""
