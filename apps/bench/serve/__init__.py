"""Load on a running server: how many requests a second, how soon, and whether every answer is the right one."""
