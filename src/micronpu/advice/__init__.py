"""What a slow network could be written as instead, each idea priced by compiling it."""
