"""What Rota decides: pure functions and values, without clock, chance, I/O or logging."""
