"""What a sweep's runs say, and how sure it is. Pandas in and out: nothing here reads a folder or knows who ran the arms.

facts         what the sweep asked, and the names of knobs and levels for people
runs          the frame of runs, checked, with its levels made comparable
paired        paired intervals over seeds, Holm's correction, rank correlation
effects       levels of a knob and arms against each other; knobs that were sampled
interactions  does the effect of one knob depend on another?
findings      all of these, and the best arm
frontier      arms that no other beats in both reward and drift
bound         arms that keep the bound on the drift, the only ones that can be the best
"""
