"""A sweep for people: words, tables, pictures and one page, made of the same findings.

files         `make_report`: tables of the runs, Parquet tables of effects, pictures, and the page
words         the answer in plain lines, from the same objects as the tables
"""
