"""Compares a bundle with the trained model that it was made from (parity).

The oracle is `reference_model` in PyTorch in fp32, decoding without a cache. `inputs.items`,
`report`, `verdict` and the records of `sensitivity` import neither PyTorch nor ONNX.
"""
