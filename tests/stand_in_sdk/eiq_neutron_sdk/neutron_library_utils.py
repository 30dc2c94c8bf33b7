"""The targets that the stand-in knows."""


class _Target:
    def __init__(self, name):
        self.name = name


def getNeutronTargets():  # noqa: N802 (the name of the SDK)
    return [_Target("imxrt700"), _Target("imx95")]
