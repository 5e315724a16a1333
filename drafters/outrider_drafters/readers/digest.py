"""A digest of all weights of a model, as fast as memory is read."""

import hashlib
import json
from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

from outrider_drafters.quantization.quantized_tensor import QuantizedWeight
from outrider_drafters.readers.config import Config

_DIGEST_BYTES = 16
_BLOCK_WORDS = 128  # of 8 bytes: what is added up at a time


def weights_digest(config: Config, tensors: Iterable[tuple[str, Tensor]]) -> str:
    """Compute the hex digest of a loaded model's config and tensors, by the bytes they lie in memory as.

    It tells models and dtypes apart; it is no proof against a forger.
    """
    digest = hashlib.blake2b(json.dumps(config, sort_keys=True).encode(), digest_size=_DIGEST_BYTES)
    for name, tensor in tensors:
        for part in _stored_parts(tensor.detach()):
            digest.update(f"{name} {part.dtype} {list(part.shape)}".encode())
            octets = part.contiguous().view(-1).view(torch.uint8)
            if octets.storage_offset() % 8:  # part of a larger tensor, and no word begins there
                octets = octets.clone()
            whole = len(octets) - len(octets) % (8 * _BLOCK_WORDS)
            # Sums of words instead of the words: they run at the memory's speed, a hash takes ten times as long. Sums
            # of whole numbers wrap around, and are the same on every device and in any order.
            sums = octets[:whole].view(torch.int64).view(-1, _BLOCK_WORDS).sum(1)
            digest.update(sums.cpu().numpy().tobytes() + octets[whole:].cpu().numpy().tobytes())
    return digest.hexdigest()


def _stored_parts(tensor: Tensor) -> Iterator[Tensor]:
    """Yield the plain tensors that a quantized or divided one consists of, on this rank."""
    if hasattr(tensor, "to_local"):  # divided among processes
        tensor = tensor.to_local()
    if isinstance(tensor, QuantizedWeight):
        yield from tensor.coded.parts
        return
    if not hasattr(tensor, "__tensor_flatten__"):
        yield tensor
        return
    for name in tensor.__tensor_flatten__()[0]:
        yield from _stored_parts(getattr(tensor, name))
