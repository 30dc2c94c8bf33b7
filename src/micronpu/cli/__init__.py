"""The `micronpu` command.  Importing it loads neither torch nor NumPy, so that `--help` and `targets` need not wait."""
