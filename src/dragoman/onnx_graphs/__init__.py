"""What export and optimize share about ONNX graphs.

`graph_files` stores graphs with their weights and tells which module a node came from;
`attention_graph` and `candidates_graph` make the two graphs that do not compute the model.
"""
