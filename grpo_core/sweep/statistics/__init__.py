"""What a sweep's runs say, and how sure it is. Pandas in and out: nothing here reads a folder or knows who ran the arms.

runs          the runs of a sweep and what was asked of them: levels and means that can be compared, arms within the bound
paired        paired intervals over seeds, and over seeds and prompts; moderated t, Holm's correction, rank correlation
effects       what is tested and which p-value decides whether it is claimed: levels of a knob and arms against each other,
              interactions of knobs; knobs that were sampled
variance      how a difference spreads, estimated on a pilot; power: how small a difference a sweep of so many seeds establishes
findings      all of these, the best of the arms within the bound on the drift, and the frontier of reward and drift
"""
