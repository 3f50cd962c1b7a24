"""Evaluations of multiple-choice files, and the model of lm-evaluation-harness.

`files` reads and checks questions · `run` scores them · `measures` computes accuracies
· `summary` collects a run's figures · `limits` accuracies to reach, and exit status ·
`output` the files that a run writes · `report` its HTML page · `harness` the lm-eval
model (extra ``eval``), `prefixes` what its contexts share.
"""
