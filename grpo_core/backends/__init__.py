"""Other engines behind the same configuration, flow and journal; each library is imported in the files named after it."""
