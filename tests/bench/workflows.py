"""The trip that is measured: three durable steps, each of which reads the answer of the one before."""

from workflows import Workflow, given, step


class TripOfNoops(Workflow):
    flight = step("noop.flight", input={"n": given["n"]})
    hotel = step("noop.hotel", input={"n": given["n"], "before": flight})
    car = step("noop.car", input={"n": given["n"], "before": hotel})
