"""What this machine computes in."""

import torch


def has_bf16() -> bool:
    """Return whether the GPU, or without one the processor, multiplies matrices in bfloat16."""
    if torch.accelerator.is_available():
        return torch.cuda.is_available() and torch.cuda.is_bf16_supported()
    return cpu_has_bf16()


def cpu_has_bf16() -> bool:
    """Return whether the processor multiplies in bfloat16; others convert: seven times as slow as float32."""
    return bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())
