"""What export and optimize share about ONNX graphs.

`graph_files` stores graphs with their weights and tells which module a node came from;
`optional_graphs` makes the graphs that do not compute the model.
"""
