"""A Ray cluster: the one that the environment names, or else this machine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from micronpu.base.errors import RuntimeUnavailableError


@contextmanager
def cluster() -> Iterator[Any]:
    """Return the module `ray`, connected.

    Raises:
        RuntimeUnavailableError: Ray is not installed.
    """
    try:
        import ray
    except ImportError as error:
        hint = 'pip install "micronpu[ray]"'
        raise RuntimeUnavailableError(f"Ray cannot be imported: {error}.", hint=hint) from error
    ray.init(ignore_reinit_error=True, log_to_driver=False, include_dashboard=False)
    try:
        yield ray
    finally:
        ray.shutdown()
