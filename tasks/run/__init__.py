"""The stages of one run: data, model, training, monitoring, evaluation, report; and what they are set up with."""
