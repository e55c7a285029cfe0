"""Measurements of this project and pictures of its runs. Nothing of it is installed, and no test depends on a time."""
