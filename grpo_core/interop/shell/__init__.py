"""Shell scripts that start a training.

`lexer.py` cuts the text, `script.py` follows the variables, `launch.py` finds the arguments, `file.py` what lies beside the
script. Nothing is executed. What only a shell would know (`$(...)`, an unset variable) is a value that is not known.
"""
