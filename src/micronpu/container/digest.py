"""The place that a program has for a digest of itself: named data, which ExecuTorch's runtimes ignore."""

from __future__ import annotations

import hashlib

PREFIX = "micronpu_"
"""Keys of named data that no board reads begin with it."""
KEY = f"{PREFIX}digest"
MAGIC = b"micronpu sha-256"
SIZE = hashlib.sha256().digest_size
EMPTY = MAGIC + bytes(SIZE)
"""The named data of a program whose digest nobody has filled in yet; see `micronpu.program.digest`."""
