"""What a journal says: rules over records, tables, figures."""
