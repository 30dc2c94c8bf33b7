"""A stand-in for the vendor's SDK, with its call shape and none of its contents, that can also go wrong.

The environment variable STAND_IN_MOOD says how; see `_conversion` and `_wrapping`.  STAND_IN_NAMES=newer gives it the
names that the SDK has after 3.2.2.  Only the tests put it on the path, and only on that of the worker process.
"""

import os

__version__ = "9.9.9"

_MOOD = os.environ.get("STAND_IN_MOOD", "")

if _MOOD == "import_fails":
    raise ImportError("libneutron.so.3: cannot open shared object file")


if _MOOD != "no_merge":

    def merge_kernel_selection_files(input_files, output_file):
        """Joins files that this stand-in wrote."""
        lines = set()
        for name in input_files:
            with open(name, encoding="utf-8") as file:
                lines.update(line for line in file if line.startswith("KERNEL("))
        with open(output_file, "w", encoding="utf-8") as file:
            file.writelines(["/* merged by the stand-in */\n", *sorted(lines)])
