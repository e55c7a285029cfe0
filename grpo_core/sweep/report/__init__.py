"""A sweep for people: words, tables, pictures and one page, made of the same findings.

files         `write_report`: pictures, Parquet tables and the page
words         the answer in plain lines, from the same objects as the tables (best_words, knob_words, phrases)
held          what a group-size sweep was to hold constant, and whether it did
"""
