"""The solver: which qparams every value of a float program gets.

    requirements    operators ask for qparams, by what they declare
    groups          values with equal qparams get one observer
    neighbours      readers and producers limit what observers learn

It reads facts about values (`values.Value`) and knows neither an operator's name nor the graph that they come from:
`micronpu.quantize.nodes` reads the facts from nodes of torch.fx, and tests state them in tables.  What is left to
calibration is decided by the observers (`micronpu.quantize.observing`).

An example, y = reshape(sigmoid(c * x)) + z:

    requirements    the sigmoid prescribes a scale of 1/256 from -128, the reshape shares its operand's qparams, and the
                    product and the sum have their own qparams, like the inputs x and z
    groups          the sigmoid and the reshape have one observer; x, c * x, z and y have their own
    neighbours      beyond 6.1 the integers of the sigmoid do not change: the range of c * x ends there

`requirements` returns an annotation for each value: a spec for its result, and one for each (operand, reader) edge.  A
spec is learnt (by an observer), fixed, or shared with another place, a value or an edge.  `groups.observers_of` unites
the places that share, and makes the observers.  A value that is joined with others and read elsewhere has a
`PartObserver` of a group: calibration shows whether it needs its own qparams.
"""
