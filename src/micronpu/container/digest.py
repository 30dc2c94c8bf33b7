"""Placeholder for the digest of a program: named data, which ExecuTorch's runtimes ignore."""

from __future__ import annotations

import hashlib

PREFIX = "micronpu_"
"""Prefix of named-data keys that no board reads."""
KEY = f"{PREFIX}digest"
MAGIC = b"micronpu sha-256"
SIZE = hashlib.sha256().digest_size
EMPTY = MAGIC + bytes(SIZE)
"""Named data of a program without a computed digest; see `micronpu.program.digest`."""
