"""The learning rate: equation 3 of "Attention Is All You Need"."""


def inverse_square_root(step: int, *, d_model: int, warmup_steps: int, scale: float = 1.0) -> float:
    """d_model^-0.5 * min(step^-0.5, step * warmup_steps^-1.5) * scale; steps count from 1."""
    return float(scale * d_model**-0.5 * min(step**-0.5, step * warmup_steps**-1.5))
