"""Compares a bundle with the trained model that it was made from (parity).

The oracle is `reference_model` in PyTorch in fp32, decoding without a cache.

`inputs` defines the inputs, `tolerances` and `oracle` the limits. `stored` checks
the files of a bundle, `checks` its outputs on inputs, and `numerics` its graphs on probes. `parity`
runs all checks in order. `first_difference` and `verdict` describe failures. `sensitivity` measures
the cost of the precision of each product, and `report` writes everything as a page.
`inputs.items`, `report`, `verdict` and `sensitivity.results` import neither PyTorch nor ONNX.
"""
