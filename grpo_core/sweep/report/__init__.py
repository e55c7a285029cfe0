"""A sweep for people: words, tables, pictures and one page, made of the same findings.

files         `make_report`: tables of the runs, pictures, Parquet tables of effects, and the page
words         the answer in plain lines, from the same objects as the tables; `knob_words`: its lines about knobs
"""
