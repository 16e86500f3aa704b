"""CUDA errors after which a process cannot use the GPU any more."""

from __future__ import annotations

LOST = {
    "cudaErrorDevicesUnavailable": 46,
    "cudaErrorECCUncorrectable": 214,
    "cudaErrorIllegalAddress": 700,
    "cudaErrorLaunchTimeout": 702,
    "cudaErrorContextIsDestroyed": 709,
    "cudaErrorAssert": 710,
    "cudaErrorHardwareStackError": 714,
    "cudaErrorIllegalInstruction": 715,
    "cudaErrorMisalignedAddress": 716,
    "cudaErrorInvalidAddressSpace": 717,
    "cudaErrorInvalidPc": 718,
    "cudaErrorLaunchFailure": 719,
    "cudaErrorUnknown": 999,
}
"""Name -> code; every later call fails too, until the process ends."""
