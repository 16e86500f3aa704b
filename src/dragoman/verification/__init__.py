"""Parity: whether a bundle computes what the trained model computes.

The oracle is `reference_model` in PyTorch in fp32, decoding without a cache.

Reading order: `comparison`, `inputs`, what is compared on; `tolerances`, `oracle`; `stored`, what a
bundle holds; `checks`, what it computes on inputs; `numerics`, what its graphs compute on probes;
`parity`, which runs all checks in order; `first_difference`, `verdict`. `sensitivity` measures what
the precision of each product costs, and `report` writes it all as a page. `comparison`, `report`
and `sensitivity.results` import neither PyTorch nor ONNX.
"""
