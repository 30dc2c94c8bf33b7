"""Files that the firmware needs in addition to the program: sources, sizes, vectors, integration."""
