"""What export and optimize share about ONNX graphs."""
