"""Model Explorer's view of programs and reports; `main` is what Model Explorer imports."""
