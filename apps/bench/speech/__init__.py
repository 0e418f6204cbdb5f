"""What speech methods earn: speed, the wait for a sound, and whether they are understood."""
