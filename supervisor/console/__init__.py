"""The face for operators: pages that show what the store says, and buttons that call the scheduler's verbs.

No rule of the business lives here: what may be asked is `allowed.job_verbs` and `step_verbs`, what is true is told by
`workflows.explanations`, and a click that comes too late is an expected answer.
"""
