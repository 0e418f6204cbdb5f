"""What benches share: timing in turns, tables, pictures and files of results."""
