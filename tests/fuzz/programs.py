"""Programs of the kinds that the golden ones are not: compiled anew, ``python -m tests.fuzz.programs FOLDER``."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from micronpu.program.edit import strip

GOLDEN = Path(__file__).parents[1] / "golden"


def _compiled(kind: str) -> Callable[[], bytes]:
    def make() -> bytes:
        from tests.same_bytes import KINDS as COMPILED

        return COMPILED[kind]()

    return make


KINDS: dict[str, Callable[[], bytes]] = {
    "u65": _compiled("plain-u65"),
    "int16": _compiled("separable-u85-int16"),
    "states": _compiled("states"),
    "sparse": _compiled("sparse"),
    "functions": _compiled("functions"),
    "loop": _compiled("lstm-loop"),
    "stripped": lambda: strip((GOLDEN / "neutron.pte").read_bytes()),
    "stripped-combined": lambda: strip((GOLDEN / "combined.pte").read_bytes()),
    "stripped-loop": lambda: strip(_compiled("lstm-loop")()),
}
"""With the five golden ones 14 kinds."""


def main(folder: Path) -> None:
    """Writes one of each kind."""
    for kind, make in KINDS.items():
        data = make()
        (folder / f"{kind}.pte").write_bytes(data)
        print(f"{kind}: {len(data)} bytes", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
