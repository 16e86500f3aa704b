"""Neutral graphs -> TensorRT engines, for either package of TensorRT. None of it needs a GPU."""
