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


def padded_rows(num_rows: int) -> int:
    """Return the next number of rows that packed products take: 1, 2, ... 9, 11, ... 17, 21, ... 33, 41, ..."""
    # oneDNN compiles a kernel for every number of rows, which takes longer than the product and half a MiB, and keeps
    # 1024 of them. The steps end one above the powers of 2: most passes are a root and a tree of 8, 16 or 32 nodes.
    above = max(num_rows - 1, 0)
    bits = (above - 1).bit_length()
    step = 1 << max(bits - 4, min(bits - 3, 3), 0)  # a quarter more at most, an eighth from 65 on
    return -(-above // step) * step + min(num_rows, 1)
