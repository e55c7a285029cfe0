"""What a sweep's runs say, and how sure it is. Pandas in and out: nothing here reads a folder or knows who ran the arms.

runs          what the sweep asked, and the frame of its runs, checked, with levels and means that can be compared
paired        paired intervals over seeds, and over seeds and prompts; moderated t, Holm's correction, rank correlation
effects       what is tested and which p-value decides whether it is claimed: levels of a knob and arms against each other,
              interactions of knobs; knobs that were sampled
findings      all of these, the arms within the bound on the drift, the best of them, and the frontier of reward and drift
"""
