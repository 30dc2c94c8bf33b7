"""Host execution common to all backends: compiled libraries, and the executors of LiteRT and TOSA programs."""
