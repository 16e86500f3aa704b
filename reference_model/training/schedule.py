"""The learning rate: equation 3 of "Attention Is All You Need", and a final cool-down."""


def inverse_square_root(step: int, *, d_model: int, warmup_steps: int, scale: float = 1.0) -> float:
    """d_model^-0.5 * min(step^-0.5, step * warmup_steps^-1.5) * scale, for step >= 1."""
    return float(scale * d_model**-0.5 * min(step**-0.5, step * warmup_steps**-1.5))


def cool_down(epochs_done: float, *, epochs: int, cool_down_epochs: int) -> float:
    """A factor that falls linearly from 1 to 0 over the last epochs (Zhai et al. 2022, 3.5).

    Args:
        epochs_done: fractional within an epoch
        epochs: total number of epochs
        cool_down_epochs: 0 for no cool-down, as in "Attention Is All You Need"
    """
    left = epochs - epochs_done
    return min(1.0, left / cool_down_epochs) if cool_down_epochs else 1.0
