"""The names of the SDK after 3.2.2."""

from eiq_neutron_sdk._conversion import MOOD, NAMES, CompilationContext, convert, getNeutronTarget

if NAMES == "older":
    raise ModuleNotFoundError(f"No module named {__name__!r}", name=__name__)

__all__ = ["CompilationContext", "getNeutronTarget"]

if MOOD != "no_function":
    compileModel = convert  # noqa: N816 (the name of the SDK)
