"""Which files make a Python in the guest: this very interpreter, its library, shared libraries and a few packages.

Every file keeps the path that it has here, so the interpreter finds its own. Modules are compiled here: the guest would
need half a minute for it.
"""

from __future__ import annotations

import os
import py_compile
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from importlib.metadata import distribution
from pathlib import Path

from vm.cpio import Entry

PACKAGES = "lazy-loader", "packaging", "pyroute2"  # what netsim needs, and what these do
LEFT_OUT = {
    *("test", "tests", "idlelib", "tkinter", "turtledemo", "ensurepip", "lib2to3", "distutils", "pydoc_data", "venv"),
    *("site-packages", "dist-packages", "__pycache__", "dbm", "curses", "wsgiref", "xmlrpc"),
}
SITE = "/site"
INTERPRETER = os.path.realpath(sys.executable)


def interpreter_entries() -> list[Entry]:
    """Everything a guest needs to run `INTERPRETER` with PYTHONPATH={SITE}."""
    files = {str(path): path for path in _standard_library()} | dict(_package_files())
    binaries = [Path(INTERPRETER), *(path for path in files.values() if ".so" in path.suffixes)]
    entries = [_entry(place, path) for place, path in files.items()]
    entries += [_entry(str(path), path) for path in _shared_libraries(binaries)]
    return [*entries, Entry(INTERPRETER, Path(INTERPRETER).read_bytes(), executable=True)]


def compiled(path: Path, shown_as: str) -> bytes:
    """Bytecode that is never checked against its source: an initramfs keeps no times of change."""
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "module.pyc"
        mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
        py_compile.compile(str(path), str(target), shown_as, doraise=True, invalidation_mode=mode)
        return target.read_bytes()


def _entry(place: str, path: Path) -> Entry:
    if path.suffix == ".py":  # alone, without its source
        return Entry(place + "c", compiled(path, place))
    return Entry(place, path.read_bytes(), executable=".so" in path.name)


def _standard_library() -> Iterator[Path]:
    root = Path(os.__file__).parent
    for folder, names, files in os.walk(root):
        names[:] = [name for name in names if name not in LEFT_OUT and not name.startswith("config-")]
        yield from (Path(folder, name) for name in files if name.endswith((".py", ".so")) and not _is_of_tests(name))


def _is_of_tests(extension: str) -> bool:
    """Modules that CPython builds for its own tests, and those that need Tk or a terminal."""
    return extension.startswith(("_test", "_ctypes_test", "xxlimited", "_xx", "_tkinter", "_curses"))


def _package_files() -> Iterator[tuple[str, Path]]:
    """Place in the guest, and path here, of the files of PACKAGES."""
    for name in PACKAGES:
        for file in distribution(name).files or ():
            if file.parts[0] != ".." and not LEFT_OUT & set(file.parts):
                yield f"{SITE}/{file}", Path(str(file.locate()))


def _shared_libraries(binaries: Iterable[Path]) -> set[Path]:
    """What the dynamic loader maps for `binaries`, the loader included, by the paths where it looks."""
    done = subprocess.run(["ldd", *map(str, binaries)], capture_output=True, text=True, check=False)
    return {Path(path) for path in re.findall(r"(/\S+) \(0x", done.stdout)}
