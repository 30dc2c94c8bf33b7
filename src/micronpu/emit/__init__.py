"""Write graphs in standard formats."""
