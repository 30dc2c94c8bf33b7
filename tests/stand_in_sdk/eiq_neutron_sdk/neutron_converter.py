"""The names of the SDK up to 3.2.2."""

from eiq_neutron_sdk._conversion import MOOD, NAMES, CompilationContext, convert, getNeutronTarget

if NAMES == "newer":
    raise ModuleNotFoundError(f"No module named {__name__!r}", name=__name__)

__all__ = ["CompilationContext", "getNeutronTarget"]

if MOOD != "no_function":
    convertModel = convert  # noqa: N816 (the name of the SDK)
