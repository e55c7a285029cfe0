"""What the parts of `catalogue.py` run: a module each, with `run(context) -> Result`."""
