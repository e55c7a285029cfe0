"""Training processes: started, watched, stopped; cancellation, slots, and whose flow run this is."""
