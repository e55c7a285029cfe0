"""How a training's process gets its memory from the C library.

A step on a CPU allocates and frees gigabytes. By default glibc gives back to the system what was freed last, and takes it again
as fresh pages, which the system has to zero. Here the memory that a step has freed is kept for the next one, in pages of 2 MB
(EXPERIMENTS.md has the figures). Tensors of 32 MB and more still come from the system one by one: in the heap, small results
between them would keep it from being used again. Another C library ignores the variable.
"""

TUNABLES = {
    "hugetlb": 1,  # pages of 2 MB, where the system has them to give
    "mmap_threshold": 2**25,  # the largest that glibc takes; what is smaller comes from the heap
    "trim_threshold": 2**60,  # whose end is never given back
    "top_pad": 2**28,  # it grows by 256 MB at a time
}
REUSED_MEMORY = {"GLIBC_TUNABLES": ":".join(f"glibc.malloc.{name}={value}" for name, value in TUNABLES.items())}
"""For the environment of a process; it is read when the process starts."""
