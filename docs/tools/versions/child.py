"""Decodes words by a bundle with the libraries of this interpreter's environment.

    python child.py BUNDLE < words.json > outputs.json

It needs the runtime alone: numpy, tokenizers and onnxruntime, and the folder `src` on `PYTHONPATH`.
"""

from __future__ import annotations

import argparse
import json
import sys
from importlib import metadata
from typing import Any

from dragoman import DragomanError
from dragoman.runtime import load
from dragoman.runtime.backends.onnxruntime import cpu

ROWS = 64
"""Words that are decoded at once."""
STREAMED = 20
"""Words that are also decoded by `Model.stream`."""


def main() -> None:
    """Read words, and print versions and outputs, or what went wrong, as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bundle")
    parser.add_argument("--check", choices=["always", "never"], default="never")
    parser.add_argument("--products", choices=["fast", "exact"], help="[as the processor needs]")
    options = parser.parse_args()
    if options.products is not None:
        # Fast, as on processors with VNNI, where no product saturates; or exact, as on others.
        cpu.saturates = lambda: options.products == "exact"  # type: ignore[assignment]
    names = ("onnxruntime", "tokenizers", "numpy")
    found: dict[str, Any] = {"versions": {name: metadata.version(name) for name in names}}
    words = json.load(sys.stdin)
    try:
        model = load(options.bundle, threads=1, check=options.check)
    except DragomanError as error:
        print(json.dumps(found | {"not_loaded": str(error)}))
        return
    batches = [words[start : start + ROWS] for start in range(0, len(words), ROWS)]
    results = [result for batch in batches for result in model.generate(batch)]
    try:
        for word, result in zip(words[:STREAMED], results, strict=False):
            text = "".join(token.text or "" for token in model.stream(word))
            if text != result.text:
                found["stream"] = f"{word}: expected {result.text}, found {text}"
    except Exception as error:  # whatever a library raises
        found["stream"] = f"{type(error).__name__}: {error}"
    found["texts"] = [result.text for result in results]
    found["errors"] = [str(result.error) for result in results if result.error is not None]
    print(json.dumps(found))


if __name__ == "__main__":
    main()
