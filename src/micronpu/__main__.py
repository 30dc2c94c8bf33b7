"""Entry point of ``python -m micronpu``, the same as the script `micronpu`."""

from micronpu.cli.__main__ import main

if __name__ == "__main__":
    main()
