"""Names that scripts for ExecuTorch's own backends import, for each backend of this package.

They let a script run after only its imports are changed; new code needs none of them.  Some have no effect here, which
a report mentions.
"""

from micronpu.base.lazy import lazily

__all__, __dir__, __getattr__ = lazily(__name__, __file__)
