"""What a machine with CUDA shows of this project, in one report: `make gpu-check`.

Each part runs in a process of its own with a time limit, so that a crash, a lack of memory or a hang ends that part alone. The
process that starts them imports no torch, and takes no GPU memory.
"""
