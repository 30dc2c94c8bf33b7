"""Base class of reports, which are printed and written as JSON."""

from __future__ import annotations

import json
from typing import Any, ClassVar

from micronpu.base.arguments import check_type
from micronpu.report.codec import encode
from micronpu.report.shown import Shown


class JsonReport(Shown):
    """A dataclass, made with ``repr=False``, that is printed and written as JSON.

    Attributes:
        FORMAT: name of the kind of report in the JSON.
        VERSION: version of the JSON.  Keys may be added within a version; none is removed or changes its meaning.
    """

    FORMAT: ClassVar[str]
    VERSION: ClassVar[int] = 1

    def to_dict(self) -> dict[str, Any]:
        """Return the content of `to_json`."""
        return {"format": self.FORMAT, "version": self.VERSION, **encode(self)}

    def to_json(self, indent: int | None = 2) -> str:
        """Return the report as JSON; docs/report.md and docs/accuracy.md describe it."""
        check_type("indent", indent, int, type(None))
        return json.dumps(self.to_dict(), indent=indent)
