"""A sweep for people: the answer, tables, charts and one page, made of the same findings.

files         `make_report`: tables of the runs, Parquet tables of effects, and the page
answer        the headline, a card for each parameter and the next commands, for the page and the terminal
words         how sure each statement is, in sentences from the same objects as the tables
charts        what the SVG charts show
live          the page while the sweep runs
"""
