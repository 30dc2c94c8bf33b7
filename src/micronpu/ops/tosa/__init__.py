"""What several operators write as TOSA."""
