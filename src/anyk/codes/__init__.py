"""The codes, one a file."""

from .base import Code, DataCode, Decoder
from .berrut import BerrutCode
from .berrut_gradient import BerrutGradientCode
from .cyclic import CyclicCode, CyclicMDSCode
from .fractional import FractionalRepetitionCode
from .gradient import GradientCode
from .graph import GraphCode
from .group import GroupCode
from .ignore import IgnoreStragglersCode
from .lagrange import LagrangeCode
from .nullspace import NullSpaceCode
from .polynomial_of_sum import PolynomialOfSumCode
from .repetition import RepetitionCode
from .uncoded import UncodedCode
from .universal import UniversalPolynomialCode

__all__ = [
    "BerrutCode",
    "BerrutGradientCode",
    "Code",
    "CyclicCode",
    "CyclicMDSCode",
    "DataCode",
    "Decoder",
    "FractionalRepetitionCode",
    "GradientCode",
    "GraphCode",
    "GroupCode",
    "IgnoreStragglersCode",
    "LagrangeCode",
    "NullSpaceCode",
    "PolynomialOfSumCode",
    "RepetitionCode",
    "UncodedCode",
    "UniversalPolynomialCode",
]
