"""A Cortex-M core with CMSIS-NN under the names that ExecuTorch users know."""

from micronpu.base.lazy import lazily

__all__, __dir__, __getattr__ = lazily(__name__, __file__)
