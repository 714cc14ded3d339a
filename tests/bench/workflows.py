"""What is measured: a trip of three durable steps, each of which reads the answer of the one before, and a step over a list."""

from workflows import Workflow, given, item, step


class TripOfNoops(Workflow):
    flight = step("noop.flight", input={"n": given["n"]})
    hotel = step("noop.hotel", input={"n": given["n"], "before": flight})
    car = step("noop.car", input={"n": given["n"], "before": hotel})


class FanOfNoops(Workflow):
    touch = step("noop.touch", compensation=False, each=given["numbers"], input={"n": item})
