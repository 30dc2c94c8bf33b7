"""The `micronpu` command.  Importing it loads neither torch nor NumPy: `--help` and `targets` must not wait for them."""
