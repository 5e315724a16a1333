"""A pseudo-terminal for commands."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import threading

_ESCAPES = re.compile(r"\x1b\[[?0-9;]*[A-Za-z]")


class Terminal:
    """A program on a pseudo-terminal."""

    def __init__(self, command, environment):
        self._ours, theirs = pty.openpty()
        self._process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment)
        os.close(theirs)
        self._heard = ""
        self._more = threading.Condition()
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self):
        while True:
            try:
                data = os.read(self._ours, 65536).decode(errors="replace")
            except OSError:
                return
            if "\x1b[6n" in data:
                os.write(self._ours, b"\x1b[1;1R")  # where the cursor is: prompt_toolkit asks
            with self._more:
                self._heard += data
                self._more.notify_all()

    def type(self, text):
        os.write(self._ours, text.encode())

    def until(self, text, since=0):
        with self._more:
            assert self._more.wait_for(lambda: text in self._text()[since:], timeout=60), self._text()[since:]
            return self._text().index(text, since) + len(text)  # what follows may have come with it

    def _text(self):
        return _ESCAPES.sub("", self._heard)

    def ended(self):
        return self._process.wait(timeout=60)
