"""Who takes part: Dragoman's precisions, and of other tools those that are its nearest rivals.

A picture with the modes of all tools could not be read.
"""

from __future__ import annotations

from ..harness import HERE, Interpreter
from ..models.bundles import Calibration
from ..text.contenders import TextContender, cpu_contenders

NAMES = (
    "Dragoman fp32",
    "Dragoman int8",
    "Dragoman int4",
    "CTranslate2 float32",
    "CTranslate2 int8",
    "OpenVINO int8",
)


def growth_contenders(
    calibration: Calibration = (), openvino_in: Interpreter = HERE
) -> list[TextContender]:
    """Dragoman first. Tools that are not installed are included: their failure is reported.

    Args:
        calibration: what Dragoman's bundles are quantized with
        openvino_in: has Optimum-Intel
    """
    known = cpu_contenders(calibration=calibration, openvino_in=openvino_in)
    return [contender for contender in known if contender.name in NAMES]
