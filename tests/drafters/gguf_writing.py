"""Writes GGUF files for tests with the package gguf's own writer."""

from collections.abc import Mapping
from contextlib import contextmanager
from pathlib import Path

import gguf


@contextmanager
def writing(path: Path, architecture: str, values: Mapping[str, object], tensors_a_part: int = 0):
    """Give the writer of a file with these values of its architecture; it is written at the end of the block.

    `tensors_a_part`: into files NAME-00001-of-0000N.gguf of so many tensors, 0 into one.
    """
    writer = gguf.GGUFWriter(path, architecture, split_max_tensors=tensors_a_part)
    for key, value in values.items():
        _add(writer, f"{architecture}.{key}", value)
    yield writer
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add(writer: gguf.GGUFWriter, key: str, value: object) -> None:
    match value:
        case bool():
            writer.add_bool(key, value)
        case int():
            writer.add_uint32(key, value)
        case float():
            writer.add_float32(key, value)
        case str():
            writer.add_string(key, value)
        case list():
            writer.add_array(key, value)
