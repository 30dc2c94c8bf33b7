"""What runs on the host below every family: compiled libraries, and the executors of LiteRT and TOSA programs."""
