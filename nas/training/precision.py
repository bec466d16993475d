"""Number formats of forward passes."""

from __future__ import annotations

import torch

from nas.core.validation import check_choice

PRECISIONS = ("auto", "float32", "bfloat16")


def checked_precision(name: str) -> str:
    """Returns the name of a precision.

    Raises:
        ConfigurationError: the name is unknown.
    """
    return check_choice("problem.precision", name, PRECISIONS)


def precision_of(name: str, device: str) -> torch.autocast:
    """Returns the context of a forward pass: float32, or bfloat16 by torch's autocast.

    Args:
        name: ``float32``, ``bfloat16``, or ``auto``: bfloat16 on GPUs and processors with bfloat16 instructions. Those
            are Intel's AMX (two to three times as fast) and AVX-512 BF16 (almost twice).
        device: ``cpu``, ``cuda`` or ``mps``.
    """
    enabled = name == "bfloat16" or (name == "auto" and _has_bfloat16(device))
    return torch.autocast(device, torch.bfloat16, enabled=enabled)


def _has_bfloat16(device: str) -> bool:
    if device == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    if device != "cpu" or not hasattr(torch.cpu, "get_capabilities"):  # as in older versions of torch
        return False
    capabilities = torch.cpu.get_capabilities()
    return bool(capabilities.get("amx_bf16") or capabilities.get("avx512_bf16"))
