"""Evaluations that people already run, over exact scores with reuse.

`files` multiple-choice files, read and checked · `measures` from scores to figures,
pure · `run` a file, scored · `summary` what that came to · `report` the page about it ·
`harness` the model of lm-evaluation-harness (extra ``eval``). This room must not know
how a group travels, and must not write to the terminal.
"""
