"""What stands before and behind a network in a firmware: small C functions, each with its definition in Python.

`micronpu deploy --with resize,nms` writes them beside the programs. They compute with integers alone, or compare, so
that C and Python give the same bits on every machine; tests compare both on 1,000 rows each, here and on two emulated
cores.
"""

from micronpu.deploy.functions.detection import Found, nms, ssd_decode
from micronpu.deploy.functions.picture import resize
from micronpu.deploy.functions.scores import Smooth, topk

DEFINITIONS = {"resize": resize, "ssd_decode": ssd_decode, "nms": nms, "smooth": Smooth, "topk": topk}
"""By the name that `--with` knows, in the order of `micronpu.deploy.together.FUNCTIONS`."""

__all__ = ["DEFINITIONS", "Found", "Smooth", "nms", "resize", "ssd_decode", "topk"]
