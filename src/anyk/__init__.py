"""anyk: any k of n. Coded computing over workers that may be slow, dead, noisy or lying."""

from .codes import BerrutCode, Code, DataCode, Decoder, LagrangeCode, RepetitionCode, UncodedCode
from .codes.berrut import error_bound, lebesgue_bound
from .interpolation import lebesgue_constant, lebesgue_function
from .ordering import path_order

__version__ = "0.1.0"
__all__ = [
    "BerrutCode",
    "Code",
    "DataCode",
    "Decoder",
    "LagrangeCode",
    "RepetitionCode",
    "UncodedCode",
    "error_bound",
    "lebesgue_bound",
    "lebesgue_constant",
    "lebesgue_function",
    "path_order",
]
