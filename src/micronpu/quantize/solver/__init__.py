"""The solver: which qparams every value of a float program gets.

    requirements    operators ask for qparams, by what they declare
    groups          values with equal qparams get one observer
    neighbours      readers and producers limit what observers learn

It reads facts about values (`values.Value`) and knows neither an operator's name nor the graph that they come from:
`micronpu.quantize.nodes` reads the facts from nodes of torch.fx, and tests state them in tables.  What is left to
calibration is decided by the observers (`micronpu.quantize.observing`).
"""
