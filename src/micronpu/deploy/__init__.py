"""What the firmware needs beside the program: sources, sizes, vectors, integration."""
