"""`outrider-bench trace` in this process."""

import json

from typer.testing import CliRunner

from outrider_bench.cli.app import app


def trace(target, drafter, prompt, new_tokens, *options, **settings) -> dict:
    """The report on the answer to one prompt, and on the target alone; `settings` go by --set."""
    words = ["--target", target, "--drafter", drafter, "--prompt-ids", ",".join(map(str, prompt)), *options]
    words += [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
    result = CliRunner().invoke(app, ["trace", *map(str, words), "--max-new-tokens", str(new_tokens), "--baseline"])
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)
