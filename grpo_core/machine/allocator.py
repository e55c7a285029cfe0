"""How a training's process gets its memory from the C library.

A step on a CPU allocates and frees gigabytes. By default glibc takes every large tensor from the system and gives it back when
it is freed, so each is made of fresh pages, which the system has to zero. Here the memory that a step has freed is kept for the
next one, in pages of 2 MB (EXPERIMENTS.md has the figures). Another C library ignores the variable.
"""

TUNABLES = {
    "hugetlb": 1,  # pages of 2 MB, where the system has them to give
    "mmap_max": 0,  # large tensors come from the heap as well
    "trim_threshold": 2**60,  # whose end is never given back
    "top_pad": 2**28,  # it grows by 256 MB at a time
}
REUSED_MEMORY = {"GLIBC_TUNABLES": ":".join(f"glibc.malloc.{name}={value}" for name, value in TUNABLES.items())}
"""For the environment of a process; it is read when the process starts."""
