"""``python -m micronpu.cli``, for an environment without the `micronpu` script."""

from micronpu.cli.main import app

app(prog_name="micronpu")
