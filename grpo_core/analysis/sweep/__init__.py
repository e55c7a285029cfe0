"""What a hyperparameter sweep says, and how sure it is: statistics, figures, words and one HTML page.

Pandas in; pandas, figures and text out. Nothing here reads a run dir or knows who planned and ran the arms.

    facts       what the sweep asked, and the names of knobs and levels for people
    runs        the frame of runs, checked, with its levels made comparable
    statistics  paired intervals over seeds, Holm's correction, rank correlation
    effects     levels of a knob and arms against each other; knobs that were sampled
    interactions  does the effect of one knob depend on another?
    findings    all of these, and the best arm
    frontier    arms that no other beats in both reward and drift
    bound       arms that keep the bound on the drift, the only ones that can be the best
    held        what a group-size sweep was to hold constant, and whether it did
    words       the answer in plain lines, from the same objects as the tables (best_words, knob_words, phrases)
    report      `write_report`: figures, Parquet tables and the page
"""
