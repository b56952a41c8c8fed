"""The codes, one a file."""

from .base import Code, DataCode, Decoder
from .berrut import BerrutCode
from .berrut_gradient import BerrutGradientCode
from .bspline import BSplineCode
from .cyclic import CyclicCode, CyclicMDSCode
from .entangled import EntangledPolynomialCode
from .floater_hormann import FloaterHormannCode
from .fractional import FractionalRepetitionCode
from .frame import FrameCode
from .gaussian import GaussianFrameCode
from .gradient import GradientCode
from .graph import GraphCode
from .group import GroupCode
from .harmonic import HarmonicFrameCode
from .ignore import IgnoreStragglersCode
from .lagrange import LagrangeCode
from .learning_theoretic import LearningTheoreticCode
from .matdot import MatDotCode
from .mds import SystematicMDSCode
from .nullspace import NullSpaceCode
from .polynomial import KhatriRaoCode, PolynomialCode
from .polynomial_of_sum import PolynomialOfSumCode
from .product import ProductCode
from .repetition import RepetitionCode
from .spline import SplineCode
from .uncoded import UncodedCode
from .universal import UniversalPolynomialCode
from .vandermonde import ChebyshevCode, VandermondeCode

__all__ = [
    "BSplineCode",
    "BerrutCode",
    "BerrutGradientCode",
    "ChebyshevCode",
    "Code",
    "CyclicCode",
    "CyclicMDSCode",
    "DataCode",
    "Decoder",
    "EntangledPolynomialCode",
    "FloaterHormannCode",
    "FractionalRepetitionCode",
    "FrameCode",
    "GaussianFrameCode",
    "GradientCode",
    "GraphCode",
    "GroupCode",
    "HarmonicFrameCode",
    "IgnoreStragglersCode",
    "KhatriRaoCode",
    "LagrangeCode",
    "LearningTheoreticCode",
    "MatDotCode",
    "NullSpaceCode",
    "PolynomialCode",
    "PolynomialOfSumCode",
    "ProductCode",
    "RepetitionCode",
    "SplineCode",
    "SystematicMDSCode",
    "UncodedCode",
    "UniversalPolynomialCode",
    "VandermondeCode",
]
