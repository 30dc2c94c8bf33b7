"""Ideas for making a slow network faster, each priced by compiling it."""
