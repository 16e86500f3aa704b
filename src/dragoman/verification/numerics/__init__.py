"""Numbers compared with the oracle and with the bundle itself, on inputs made for it.

Reading order: probes, slack; products, graphs, optional_graphs, steps, batches; checking.
"""

from .checking import check_numerics
from .probes import Probe

__all__ = ["Probe", "check_numerics"]
