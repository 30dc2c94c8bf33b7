"""Pre- and postprocessing for firmware: small C functions, each with its definition in Python.

`micronpu deploy --with resize,nms` writes them beside the programs. They compute only with integers, or compare, so
that C and Python give the same bits on every machine; tests compare both on 1,000 samples each, on the host and on two
emulated cores.
"""

from micronpu.deploy.functions.detection import Found, nms, ssd_decode
from micronpu.deploy.functions.picture import resize
from micronpu.deploy.functions.scores import Smooth, topk

DEFINITIONS = {"resize": resize, "ssd_decode": ssd_decode, "nms": nms, "smooth": Smooth, "topk": topk}
"""Functions by their names for `--with`, in the order of `micronpu.deploy.shared.FUNCTIONS`."""

__all__ = ["DEFINITIONS", "Found", "Smooth", "nms", "resize", "ssd_decode", "topk"]
