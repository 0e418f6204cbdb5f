"""A decoder's pass on CPUs in one call of a C library, without torch's small operations."""
