"""Process of `micronpu compare` that compiles for one target after the other.

``python -I -S compare_worker.py FOLDER...`` takes the parent's module search path, and packages that hooks find, as
editable ones. Each request has a job and, as a blob, the pickled task; its answer is the pickled row. The model is
loaded once.
"""

import pickle
import site
import sys
from typing import Any


def main() -> None:
    """Process jobs until the parent is gone."""
    sys.path[:] = sys.argv[1:]  # before any import
    site.main()
    from micronpu.base.errors import MicroNpuError
    from micronpu.base.worker import parent, serve
    from micronpu.cli.workers import Worker, failed

    worker: Worker | None = None

    def answer(head: dict[str, Any], blobs: list[bytes]) -> tuple[dict[str, Any], list[bytes]]:
        nonlocal worker
        target, activations = head["job"]
        try:
            worker = worker or Worker(pickle.loads(blobs[0]))
            row = worker.run((target, activations))
        except MicroNpuError as error:
            row = failed((target, activations), str(error))
        return {}, [pickle.dumps(row)]

    serve(parent(), answer)


if __name__ == "__main__":
    main()
