"""What should happen: plans, as they are declared and as they are stored. Nothing here knows a database.

A declaration is read in this order:

`steps`, `waits`, `children`     the words of a class body: step, timer and signal, child
`references`, `retry`, `limit`   what is written inside them
`arguments`, `declared`          the arguments they share, checked; the step as it was declared
`declaration`                    the class being made: collects the steps, checks names and options
`building`                       the plan made of them: names, templates, and who waits for whom
`schema`                         follows a `given[…]` through the workflow's input schema
`templates`                      a step's input as JSON with references in it, and its value once they are known
`plan`                           the result: plain data that is stored with every job
`inputs`, `json_values`          what a job may be started with
`registry`, `checks`             all workflows by name, and whether their operations and children exist
"""
