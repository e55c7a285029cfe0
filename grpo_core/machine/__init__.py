"""What the machine has and how processes on it keep out of each other's way: locks, GPUs, disk, hardware, files."""
