"""The pieces of the guest that need no boot."""

import base64
import json
import shutil
import subprocess
import zlib
from pathlib import Path

import pytest

from vm.cpio import Entry, archive
from vm.guest import BootOutcome, GuestError, answers_in, result_of
from vm.kernel_package import MODULES, _load_order


@pytest.mark.skipif(shutil.which("cpio") is None, reason="cpio is not installed: apt-get install cpio")
def test_an_archive_unpacks_to_its_entries(tmp_path):
    entries = [Entry("/a/b/odd", b"123"), Entry("/run", None), Entry("/init", b"#!/bin/sh\n", executable=True)]
    subprocess.run(["cpio", "-idm", "--quiet"], cwd=tmp_path, input=archive(entries), check=True)
    assert (tmp_path / "a/b/odd").read_bytes() == b"123"
    assert (tmp_path / "run").is_dir()
    assert (tmp_path / "init").stat().st_mode & 0o777 == 0o755
    assert (tmp_path / "a/b/odd").stat().st_mode & 0o777 == 0o644


def test_modules_are_loaded_after_those_they_need(tmp_path):
    needs = dict.fromkeys((*MODULES, "deeper", "other"), "") | {"sch_tbf": "helper", "helper": "deeper"}
    for name, needed in needs.items():
        (tmp_path / f"{name}.ko").write_bytes(b"ELF\0license=GPL\0depends=" + needed.encode() + b"\0name=x\0")
    names = [path.stem for path in _load_order(tmp_path)]
    assert names == [MODULES[0], "deeper", "helper", *MODULES[1:]]


def sent(*answers):
    return "".join(base64.b64encode(zlib.compress(json.dumps(answer).encode())).decode() + "\n" for answer in answers)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"s\.py: no result; the guest hung(.|\n)*last words"),
        (sent({"result": {"a": 1}})[:-2], r"s\.py: no result; the guest hung(.|\n)*last words"),
        (sent({"error": "ZeroDivisionError"}), r"ZeroDivisionError(.|\n)*last words"),
    ],
)
def test_a_script_that_fails_or_says_nothing_is_an_error_with_the_console(text, message):
    with pytest.raises(GuestError, match=message):
        result_of(Path("s.py"), BootOutcome("hung", answers_in(text), "last words"), 0)


def test_a_result_is_what_the_script_returned():
    both = BootOutcome("hung", answers_in(sent({"result": {"a": 1}}, {"result": {"b": 2}})), "")
    assert [result_of(Path("s.py"), both, number) for number in (0, 1)] == [{"a": 1}, {"b": 2}]
