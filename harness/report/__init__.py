"""The report of one run or several: ``python -m harness.report RUN...``.

``notebooks/report.ipynb`` calls the functions of this package, cell by cell; they return DataFrames, lists of sentences
and matplotlib figures, so that each can be tested, and used in a notebook of your own, without the command.
"""
