"""The tasks of a sweep: what its flow does (`stages`), and what starts its runs (`local`, `deployed`)."""
