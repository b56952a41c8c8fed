"""Codes: final frozen dataclasses, one noun a file."""

from .base import Code, DataCode, Decoder
from .berrut import BerrutCode
from .lagrange import LagrangeCode
from .repetition import RepetitionCode
from .uncoded import UncodedCode

__all__ = ["BerrutCode", "Code", "DataCode", "Decoder", "LagrangeCode", "RepetitionCode", "UncodedCode"]
