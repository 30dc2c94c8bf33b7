"""Emulated boards: a microcontroller in QEMU whose NPU is the open simulator, and Arm's own firmware on it.

    from micronpu.board import VirtualBoard, read_model

    with VirtualBoard(read_model(Path("kws.pte").read_bytes())) as board:
        (scores,) = board.run(features)

Scope and limits: docs/virtual-board.md.
"""

from micronpu.base.lazy import lazily

__all__, __dir__, __getattr__ = lazily(__name__, __file__)
