"""The pictures of a report: SVG that takes its colours from the page."""

from .attention import draw_attention
from .parity import draw_margins
from .sensitivity import draw_keeping, draw_layers, draw_products
from .speed import draw_speed
from .svg import Chart

__all__ = [
    "Chart",
    "draw_attention",
    "draw_keeping",
    "draw_layers",
    "draw_margins",
    "draw_products",
    "draw_speed",
]
