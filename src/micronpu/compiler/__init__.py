"""The front door: model to program, along the way that DESIGN describes."""

import micronpu.quantize  # noqa: F401  (first: it keeps torchao's start-up messages from the user)
