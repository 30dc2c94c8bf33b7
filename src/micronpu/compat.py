"""Names that scripts for ExecuTorch's own back ends import beside the partitioner and the quantizer of a family.

With them a script runs once its imports are changed; new code has no need of any.  Some of them have no effect here,
and a report says so.
"""

from micronpu.base.lazy import lazily

__all__, __dir__, __getattr__ = lazily(__name__, __file__)
