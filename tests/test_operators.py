"""Linear algebra on unreliable workers: operators and products against dense algebra and SciPy, with faults."""

import contextlib
import functools
import os
import signal
import threading
import time

import numpy as np
import psutil
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scipy import sparse
from scipy.sparse.linalg import LinearOperator, aslinearoperator, cg, eigsh, gmres, lsqr, svds

import anyk
from anyk import CodedOperator, EntangledPolynomialCode, KhatriRaoCode, MatDotCode, PolynomialCode
from anyk.errors import ApproximationWarning, BlocksError, TaskFailed, TooFewResponders, UnsafeDecode, WorkersClosed

# whatever else the tests have imported (torch, say) is not loaded again for each set of workers
Local = functools.partial(anyk.LocalWorkers, preload=())
steady = settings(derandomize=True, deadline=None, max_examples=25, suppress_health_check=[HealthCheck.too_slow])
N = 8
POWERS = [0, 1, 7, 3, 5]
CODES = [
    anyk.SystematicMDSCode(N, 6),
    anyk.SystematicMDSCode(N, 1),
    anyk.GaussianFrameCode(N, 5),
    anyk.GaussianFrameCode(N, 5, field="complex"),
    anyk.HarmonicFrameCode(N, POWERS),
    anyk.HarmonicFrameCode(N, POWERS, real=True),
    anyk.ChebyshevCode(N, 4),
    anyk.LagrangeCode(N, 4),
    anyk.RepetitionCode(N, 4),
    anyk.UncodedCode(N, 5),
    anyk.UncodedCode(N, N),
]
PRODUCTS = [
    *(PolynomialCode(N, 2, 3, basis) for basis in ("harmonic", "chebyshev", "circle", "monomial")),
    *(MatDotCode(N, 3, basis) for basis in ("harmonic", "chebyshev", "circle", "monomial")),
    *(EntangledPolynomialCode(N, 1, 2, 2, basis) for basis in ("circle", "monomial")),
    EntangledPolynomialCode(N, 2, 1, 3),
    KhatriRaoCode(N, 2, 3, rng=1),
    PolynomialCode(N, 1, 5),
    PolynomialCode(N, 5, 1),
]
KINDS = ("dense", "sparse")


@pytest.fixture(scope="module")
def threads():
    with anyk.ThreadWorkers(N) as workers:
        yield workers


@pytest.fixture(scope="module")
def local():
    with Local(N) as workers:
        yield workers


def draw(rng, shape, dtype=np.float64):
    if np.issubdtype(dtype, np.integer):
        return rng.integers(-9, 10, shape).astype(dtype)
    values = rng.standard_normal(shape)
    return (values + 1j * rng.standard_normal(shape) if np.issubdtype(dtype, np.complexfloating) else values).astype(
        dtype
    )


def as_kind(matrix, kind):
    """Half of the entries of a sparse one are zero."""
    if kind == "dense":
        return matrix
    holes = np.indices(matrix.shape).sum(axis=0) % 2 == 1
    return sparse.csr_array(np.where(holes, 0, matrix).astype(matrix.dtype))


def dense(matrix):
    return matrix.toarray() if sparse.issparse(matrix) else matrix


def near(got, expected, eps=None):
    got, expected = np.asarray(got), np.asarray(expected)
    assert got.shape == expected.shape
    eps = eps or 1e-9
    np.testing.assert_allclose(got, expected, rtol=0, atol=eps * max(1.0, np.abs(expected).max(initial=0.0)))


# -- operators against dense algebra ----------------------------------------------------------------------------------


def check_algebra(operator, matrix, rng, dtype=np.float64, eps=None):
    matrix = dense(matrix)
    if matrix.dtype.kind in "iu":
        matrix = matrix.astype(np.float64)
    rows, columns = matrix.shape
    assert (operator.shape, operator.dtype) == (matrix.shape, matrix.dtype)
    x, y = draw(rng, columns, dtype), draw(rng, rows, dtype)
    xs, ys = draw(rng, (columns, 3), dtype), draw(rng, (rows, 2), dtype)
    adjoint = matrix.conj().T
    for got, expected in (
        (operator.matvec(x), matrix @ x),
        (operator.matvec(x[:, None]), matrix @ x[:, None]),
        (operator.matmat(xs), matrix @ xs),
        (operator.rmatvec(y), adjoint @ y),
        (operator.rmatmat(ys), adjoint @ ys),
        (operator.H @ y, adjoint @ y),
        (operator.H @ ys, adjoint @ ys),
        (operator.H.H @ x, matrix @ x),
        (operator.T @ y, matrix.T @ y),
        (operator @ x, matrix @ x),
        (operator @ xs, matrix @ xs),
        ((2 * operator) @ x, 2 * (matrix @ x)),
        ((operator + operator) @ xs, 2 * (matrix @ xs)),
        ((operator.H @ operator) @ x, adjoint @ (matrix @ x)),
        (operator @ xs[:, :0], matrix @ xs[:, :0]),
    ):
        near(got, expected, eps)
    assert (operator @ x).dtype == np.result_type(matrix.dtype, x.dtype)
    assert (operator.H @ ys).dtype == np.result_type(matrix.dtype, ys.dtype)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [np.float64, np.complex128])
@pytest.mark.parametrize("code", CODES, ids=repr)
def test_operators_are_their_matrices(code, dtype, kind, threads):
    rng = np.random.default_rng(0)
    for shape in ((13, 9), (1, 7), (3, 20)):  # rows that no code divides, a single one, fewer than blocks
        matrix = as_kind(draw(rng, shape, dtype), kind)
        operator = CodedOperator(matrix, code, threads)
        check_algebra(operator, matrix, rng)
        check_algebra(operator, matrix, rng, np.complex128)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("dtype", "eps"), [(np.float32, 1e-4), (np.complex64, 1e-4), (np.int32, 1e-9), (np.bool_, 0)])
def test_other_dtypes(dtype, eps, kind, threads):
    rng = np.random.default_rng(1)
    matrix = as_kind(draw(rng, (10, 7), np.int32) > 0 if dtype == np.bool_ else draw(rng, (10, 7), dtype), kind)
    for code in (anyk.SystematicMDSCode(N, 6), anyk.HarmonicFrameCode(N, POWERS, real=True)):
        operator = CodedOperator(matrix, code, threads)
        if dtype == np.bool_:
            near(operator @ np.ones(7), dense(matrix) @ np.ones(7))
        else:
            check_algebra(operator, matrix, rng, dtype if eps == 1e-4 else np.float64, eps)


@steady
@given(st.integers(1, 12), st.integers(1, 6), st.integers(1, 8), st.sampled_from(KINDS), st.integers(0, 99))
def test_any_shape(threads, rows, columns, blocks, kind, seed):
    rng = np.random.default_rng(seed)
    matrix = as_kind(draw(rng, (rows, columns)), kind)
    with CodedOperator(matrix, anyk.SystematicMDSCode(N, blocks, rng=seed), threads) as operator:
        x, y = draw(rng, (columns, 2)), draw(rng, rows)
        near(operator @ x, dense(matrix) @ x, 1e-7)
        near(operator.H @ y, dense(matrix).T @ y, 1e-7)


def test_defaults(threads):
    matrix = np.arange(12.0).reshape(4, 3)
    operator = CodedOperator(matrix, workers=threads)
    assert operator.code == anyk.SystematicMDSCode(8, 6)
    assert (operator.rounds, operator.run) == (0, None)
    near(operator @ np.ones(3), matrix.sum(axis=1))
    assert operator.rounds == 1
    assert len(operator.run.responders) == 6
    assert operator.run.traffic is not None
    with anyk.ThreadWorkers(1) as single:
        near(CodedOperator(matrix, workers=single) @ np.ones(3), matrix.sum(axis=1))


def test_sparse_formats(threads):
    for matrix in (sparse.csc_matrix([[1.0, 2], [3, 4]]), sparse.coo_array([[1, 2], [3, 4]])):
        near(CodedOperator(matrix, workers=threads) @ np.ones(2), [3, 7])


def test_scipy_s_own_manners(threads):
    """What aslinearoperator(matrix) does with shapes."""
    matrix = np.arange(12.0).reshape(4, 3)
    operator, plain = CodedOperator(matrix, workers=threads), aslinearoperator(matrix)
    assert isinstance(operator, LinearOperator)
    assert aslinearoperator(operator) is operator
    for wrong in (np.ones(4), np.ones((4, 2)), np.ones((3, 1, 1))):
        for A in (operator, plain):
            with pytest.raises(ValueError):
                A @ wrong
    for A in (operator, plain):
        with pytest.raises(ValueError):
            A.matvec(np.ones((3, 2)))
        with pytest.raises(ValueError):
            A.matmat(np.ones(3))
        with pytest.raises(ValueError):
            A.rmatvec(np.ones(3))
        with pytest.raises(ValueError):
            A.H @ np.ones(3)
        with pytest.raises(ValueError):
            A + aslinearoperator(np.ones((3, 3)))
        with pytest.raises(ValueError):
            A**2
    near((operator @ aslinearoperator(np.ones((3, 2)))) @ np.ones(2), plain @ np.full(3, 2.0))
    near((-operator) @ np.ones(3), -(plain @ np.ones(3)))
    square = CodedOperator(matrix[:3], workers=threads)
    near((square**3) @ np.ones(3), np.linalg.matrix_power(matrix[:3], 3) @ np.ones(3))
    assert operator.H.shape == operator.T.shape == (3, 4)


# -- solvers while workers fail ---------------------------------------------------------------------------------------

RATES = {anyk.Slow(0.02): 0.1, anyk.Crash(): 0.02}


@pytest.fixture(params=[0, 1], ids=lambda seed: f"seed{seed}")
def failing(request, local):
    """Workers with a table of random faults, of which the codes here survive as many as fall into one round."""
    return anyk.FaultyWorkers(local, anyk.random_faults(N, 5000, RATES, seed=request.param))


def laplacian(n):
    return sparse.diags_array([-1.0, 2.1, -1.0], offsets=[-1, 0, 1], shape=(n, n)).tocsr()


@pytest.mark.parametrize("kind", KINDS)
def test_solvers_do_not_notice_failing_workers(kind, failing):
    rng = np.random.default_rng(0)
    matrix = laplacian(60) if kind == "sparse" else laplacian(60).toarray()
    b = rng.standard_normal(60)
    operator = CodedOperator(matrix, anyk.SystematicMDSCode(N, 5), failing)
    for solve in (cg, functools.partial(gmres, restart=60)):
        x, info = solve(operator, b, rtol=1e-10)
        assert info == 0
        near(x, solve(matrix, b, rtol=1e-10)[0], 1e-7)
    start = rng.standard_normal(60)  # ones would be orthogonal to half of the eigenvectors
    values, vectors = eigsh(operator, k=3, v0=start)
    near(values, eigsh(matrix, k=3, v0=start)[0])
    near(matrix @ vectors, vectors * values, 1e-7)
    assert operator.rounds > 50
    assert any(isinstance(fault, anyk.Crash) for _, _, fault in failing.injected)


@pytest.mark.parametrize("kind", KINDS)
def test_least_squares_and_singular_values_with_failing_workers(kind, failing):
    rng = np.random.default_rng(1)
    matrix = as_kind(rng.standard_normal((50, 20)), kind)
    b = rng.standard_normal(50)
    operator = CodedOperator(matrix, anyk.SystematicMDSCode(N, 5), failing)
    near(lsqr(operator, b, atol=1e-12, btol=1e-12)[0], np.linalg.lstsq(dense(matrix), b)[0], 1e-7)
    u, s, vh = svds(operator, k=3, v0=np.ones(20))
    near(np.sort(s), np.sort(svds(matrix, k=3, v0=np.ones(20))[1]))
    near(operator @ vh.T, u * s, 1e-7)


@pytest.mark.parametrize("code", [anyk.RepetitionCode(N, 3), anyk.GaussianFrameCode(N, 4)], ids=repr)
def test_power_iteration_with_failing_workers(code, failing):
    matrix = np.random.default_rng(2).random((12, 12))
    operator = CodedOperator(matrix, code, failing)
    x = y = np.ones(12)
    for _ in range(30):
        x, y = operator @ x, matrix @ y
        x, y = x / np.linalg.norm(x), y / np.linalg.norm(y)
    near(x, y)


def test_killed_workers_come_back_with_their_blocks(local):
    matrix = np.random.default_rng(3).standard_normal((20, 6))
    operator = CodedOperator(matrix, anyk.SystematicMDSCode(N, 6), local)
    for victims in ((0, 1), (1, 2, 3), tuple(range(N))):
        for victim in victims:
            with contextlib.suppress(ProcessLookupError):  # dead since the last attempts
                os.kill(local.pids[victim], signal.SIGKILL)
        near(operator @ np.ones(6), matrix.sum(axis=1))  # even if some of the deaths are only noticed in the round
        near(operator.H @ np.ones(20), matrix.sum(axis=0))


def test_raising_workers_are_done_without(threads):
    matrix = np.eye(12)
    faults = {0: anyk.Raise(), 5: anyk.Raise()}
    operator = CodedOperator(matrix, anyk.SystematicMDSCode(N, 6), threads, faults=faults)
    near(operator @ np.arange(12.0), np.arange(12.0))
    assert {0, 5}.isdisjoint(operator.run.responders)
    with pytest.raises(TaskFailed):
        CodedOperator(matrix, anyk.SystematicMDSCode(N, 6), threads, faults={**faults, 1: anyk.Raise()}) @ np.ones(12)


def test_too_many_dead():
    faults = {worker: anyk.Crash() for worker in range(3)}
    with anyk.ThreadWorkers(N) as workers:
        operator = CodedOperator(np.eye(12), anyk.SystematicMDSCode(N, 6), workers, faults=faults)
        with pytest.raises(TooFewResponders) as caught:
            operator @ np.ones(12)
        assert caught.value.run is not None
    with anyk.ThreadWorkers(N) as workers:
        operator = CodedOperator(np.eye(12), anyk.UncodedCode(N, N), workers, faults={3: anyk.Crash()})
        with pytest.raises(TooFewResponders):
            operator @ np.ones(12)
    with anyk.ThreadWorkers(N) as workers, pytest.raises(TooFewResponders):
        anyk.matmul(np.eye(12), np.eye(12), PolynomialCode(N, 2, 3), workers, faults=faults)


# -- refusals and warnings --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_non_finite_numbers_are_refused(bad, threads):
    for kind in KINDS:
        matrix = np.ones((4, 4))
        matrix[2, 2] = bad
        with pytest.raises(BlocksError, match="non-finite"):
            CodedOperator(as_kind(matrix, kind), workers=threads)
        for operands in ((as_kind(matrix, kind), np.eye(4)), (np.eye(4), as_kind(matrix, kind))):
            with pytest.raises(BlocksError, match="non-finite"):
                anyk.matmul(*operands, workers=threads)
    operator = CodedOperator(np.eye(4), workers=threads)
    for call in (operator.matvec, operator.rmatvec):
        with pytest.raises(BlocksError, match="non-finite"):
            call(np.array([1.0, 2.0, bad, 4.0]))


@pytest.mark.parametrize(
    "matrix", [np.ones(3), np.ones((2, 2, 2)), np.ones((0, 3)), np.ones((3, 0)), np.array([["a"]]), [1.0, 2.0], [["a"]]]
)
def test_what_is_no_matrix(matrix, threads):
    with pytest.raises(BlocksError):
        CodedOperator(matrix, workers=threads)
    with pytest.raises(BlocksError):
        anyk.matmul(matrix, np.eye(3), workers=threads)


def test_operators_without_entries_and_unfit_codes_are_refused(threads):
    with pytest.raises(TypeError, match="LinearOperator"):
        CodedOperator(aslinearoperator(np.eye(4)), workers=threads)
    with pytest.raises(TypeError):
        anyk.matmul(aslinearoperator(np.eye(4)), np.eye(4), workers=threads)
    for refuse in (
        lambda: CodedOperator(np.eye(8), anyk.BerrutCode(N, 4), threads),
        lambda: anyk.matmul(np.eye(8), np.eye(8), anyk.BerrutCode(N, 4), threads),
    ):
        with pytest.raises(ValueError, match="not exact for linear"):
            refuse()
    for code in (PolynomialCode(N, 2, 3), anyk.CyclicCode(N, stragglers=2), 6, anyk.SystematicMDSCode):
        with pytest.raises(TypeError):
            CodedOperator(np.eye(8), code, threads)
    for code in (anyk.CyclicCode(N, stragglers=2), 6, PolynomialCode):
        with pytest.raises(TypeError):
            anyk.matmul(np.eye(8), np.eye(8), code, threads)
    with pytest.raises(ValueError):
        CodedOperator(np.eye(8), anyk.SystematicMDSCode(N + 1, 4), threads)
    with pytest.raises(ValueError):
        anyk.matmul(np.eye(8), np.eye(8), PolynomialCode(N + 1, 2, 3), threads)
    for patience in (-1, True, "x", np.nan):
        with pytest.raises(ValueError, match="patience"):
            CodedOperator(np.eye(8), workers=threads, patience=patience)


def test_closed_operators(threads):
    operator = CodedOperator(np.eye(4), workers=threads)
    adjoint = operator.H
    operator.close()
    operator.close()
    for call in (operator.matvec, operator.rmatvec, adjoint.matvec, operator.matmat, operator.rmatmat):
        with pytest.raises(WorkersClosed):
            call(np.ones((4, 1)))
    near(CodedOperator(np.eye(4), workers=threads) @ np.ones(4), np.ones(4))  # the workers stay the caller's


def test_workers_started_by_an_operator_end_with_it():
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    with CodedOperator(np.eye(6), anyk.SystematicMDSCode(3, 2), 3) as operator:
        near(operator @ np.ones(6), np.ones(6))
        mine = [child for child in psutil.Process().children(recursive=True) if child.pid not in before]
        assert len(mine) >= 3
    for _ in range(1000):
        if not any(each.is_running() and each.status() != psutil.STATUS_ZOMBIE for each in mine):
            break
        time.sleep(0.01)
    else:
        raise AssertionError(f"still running: {mine}")
    with pytest.raises(WorkersClosed):
        operator @ np.ones(6)


def test_estimates_below_the_threshold_warn(threads):
    matrix = np.random.default_rng(4).standard_normal((12, 5))
    code = anyk.GaussianFrameCode(N, 6, below_threshold="least-squares")
    faults = {worker: anyk.Raise() for worker in range(3)}
    operator = CodedOperator(matrix, code, threads, anyk.FirstK(5), faults=faults)
    with pytest.warns(ApproximationWarning, match="too few"):
        estimate = operator @ np.ones(5)
    assert estimate.shape == (12,)
    assert 1e-3 < np.linalg.norm(estimate - matrix.sum(axis=1)) <= 2 * np.linalg.norm(matrix.sum(axis=1))
    product = PolynomialCode(N, 2, 3, below_threshold="least-squares")
    with pytest.warns(ApproximationWarning, match="too few"):
        anyk.matmul(matrix, matrix.T, product, threads, anyk.FirstK(5), faults=faults)
    dead = {worker: anyk.Crash() for worker in range(3)}
    with anyk.ThreadWorkers(N) as workers, pytest.raises(TooFewResponders, match="5 responders are fewer than the 6"):
        CodedOperator(matrix, anyk.GaussianFrameCode(N, 6), workers, anyk.FirstK(5), faults=dead) @ np.ones(5)


def test_ill_conditioned_codes_warn_or_refuse():
    with anyk.ThreadWorkers(40) as workers:
        dead = {worker: anyk.Raise() for worker in range(10)}
        matrix = np.ones((30, 4))
        operator = CodedOperator(matrix, anyk.ChebyshevCode(40, 24), workers, faults=dead, stop=anyk.FirstK(30))
        with pytest.warns(ApproximationWarning, match="Lebesgue constant"):
            operator @ np.ones(4)
        single = CodedOperator(matrix.astype(np.float32), operator.code, workers, faults=dead, stop=anyk.FirstK(30))
        with pytest.raises(UnsafeDecode):
            single @ np.ones(4, np.float32)
        with pytest.raises(UnsafeDecode):
            anyk.matmul(matrix, matrix.T, PolynomialCode(40, 5, 6, "monomial"), workers, faults=dead)


def test_costs():
    matrix = laplacian(60)
    with anyk.ThreadWorkers(N) as workers:
        systematic = CodedOperator(matrix, anyk.SystematicMDSCode(N, 6), workers)
        repeated = CodedOperator(matrix, anyk.RepetitionCode(N, 4), workers)
        full = CodedOperator(matrix.toarray(), anyk.SystematicMDSCode(N, 6), workers)
        frame = CodedOperator(matrix, anyk.GaussianFrameCode(N, 6), workers)
        assert systematic.cost.entries == repeated.cost.entries == matrix.nnz
        assert repeated.cost.overhead == 2
        assert repeated.cost.stored == 2 * matrix.nnz
        assert matrix.nnz < systematic.cost.stored <= 3 * matrix.nnz  # six parts, and two mixtures of all
        assert systematic.cost.stored < frame.cost.stored
        assert systematic.cost.largest <= matrix.nnz
        assert (full.cost.entries, full.cost.stored, full.cost.largest) == (3600, 4800, 600)
        assert full.cost.overhead == pytest.approx(4 / 3)
        assert systematic.cost.seconds >= 0
        assert systematic.adjoint_cost is None
        systematic.rmatvec(np.ones(60))
        assert systematic.adjoint_cost.entries == matrix.nnz


def test_events_and_noise(threads):
    seen = []
    operator = CodedOperator(np.eye(12), workers=threads, noise=anyk.AdditiveNoise(1e-4), on_event=seen.append)
    off = operator @ np.ones(12) - 1
    assert seen
    assert 0 < np.abs(off).max() < 0.01


# -- products of two matrices -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kinds", [(a, b) for a in KINDS for b in KINDS], ids="-".join)
@pytest.mark.parametrize("code", PRODUCTS, ids=repr)
def test_products(code, kinds, threads):
    rng = np.random.default_rng(5)
    for dtypes in ((np.float64, np.float64), (np.complex128, np.complex128), (np.float64, np.complex128)):
        for r, s, t in ((7, 5, 8), (1, 1, 1), (12, 6, 12)):  # padding everywhere, more cuts than rows, none
            a = as_kind(draw(rng, (r, s), dtypes[0]), kinds[0])
            b = as_kind(draw(rng, (s, t), dtypes[1]), kinds[1])
            result = anyk.matmul(a, b, code, threads)
            assert result.value.dtype == np.result_type(*dtypes)
            near(result.value, dense(a) @ dense(b), 1e-8)
            assert np.array_equal(np.asarray(result), result.value)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("code", PRODUCTS, ids=repr)
def test_products_of_other_dtypes(code, kind, threads):
    rng = np.random.default_rng(6)
    a, b = (as_kind(draw(rng, shape, np.float32), kind) for shape in ((7, 5), (5, 8)))
    result = anyk.matmul(a, b, code, threads)
    assert result.value.dtype == np.float32
    near(result.value, dense(a) @ dense(b), 1e-2 if getattr(code, "basis", "") == "monomial" else 1e-3)
    whole = anyk.matmul(*(as_kind(draw(rng, (4, 4), np.int64), kind) for _ in "ab"), code, threads)
    assert whole.value.dtype == np.float64


@pytest.mark.parametrize("code", [*PRODUCTS, *CODES[:3], anyk.RepetitionCode(N, 4)], ids=repr)
def test_products_with_faults(code, threads):
    rng = np.random.default_rng(7)
    a, b = rng.standard_normal((9, 6)), rng.standard_normal((6, 10))
    faults = {1: anyk.Raise(), 6: anyk.Raise()}
    result = anyk.matmul(a, b, code, threads, faults=faults)
    near(result.value, a @ b, 1e-8)
    assert {1, 6}.isdisjoint(result.run.responders)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("code", CODES, ids=repr)
def test_products_by_data_codes(code, kind, threads):
    rng = np.random.default_rng(8)
    for r in (1, 3, 13):
        a, b = as_kind(rng.standard_normal((r, 4)), kind), as_kind(draw(rng, (4, 5), np.complex128), kind)
        near(anyk.matmul(a, b, code, threads).value, dense(a) @ dense(b))


@steady
@given(st.tuples(*[st.integers(1, 9)] * 3), st.sampled_from(PRODUCTS), st.tuples(*[st.sampled_from(KINDS)] * 2))
def test_products_of_any_shape(threads, shape, code, kinds):
    rng = np.random.default_rng(sum(shape))
    r, s, t = shape
    a, b = as_kind(rng.standard_normal((r, s)), kinds[0]), as_kind(rng.standard_normal((s, t)), kinds[1])
    near(anyk.matmul(a, b, code, threads).value, dense(a) @ dense(b), 1e-8)


def test_products_with_crashes(local):
    rng = np.random.default_rng(9)
    a, b = rng.standard_normal((40, 30)), rng.standard_normal((30, 40))
    faulty = anyk.FaultyWorkers(local, anyk.random_faults(N, 5000, {anyk.Slow(0.02): 0.1, anyk.Crash(): 0.08}, seed=3))
    for code in (
        PolynomialCode(N, 2, 2),
        MatDotCode(N, 2),
        EntangledPolynomialCode(N, 1, 2, 2),
        KhatriRaoCode(N, 2, 2),
    ):
        for _ in range(5):
            near(anyk.matmul(a, b, code, faulty).value, a @ b, 1e-8)
            near(anyk.matmul(sparse.csr_array(a), b, code, faulty).value, a @ b, 1e-8)


def test_the_matrix_is_copied(threads):
    for kind in KINDS:
        for late in range(3):
            given = as_kind(np.random.default_rng(0).standard_normal((12, 12)), kind)
            matrix = dense(given).copy()
            operator = CodedOperator(given, anyk.SystematicMDSCode(N, 6), threads, faults={late: anyk.Raise()})
            (given.data if sparse.issparse(given) else given)[:] = 0
            near(operator @ np.ones(12), matrix.sum(axis=1))
            near(operator.H @ np.ones(12), matrix.sum(axis=0))


def test_rounding_of_float32_operands_counts():
    rng = np.random.default_rng(0)
    matrix = rng.standard_normal((60, 20)).astype(np.float32)
    wide = matrix.astype(float)
    code, gone = anyk.ChebyshevCode(18, 12), {i: anyk.Raise() for i in range(4)}  # a gap at the end
    assert 3e3 < code.decoder(range(4, 18)).lebesgue_constant < 1e6
    with anyk.ThreadWorkers(18) as workers:
        operator = CodedOperator(matrix, code, workers, faults=gone, stop=anyk.All())
        for _ in range(2):  # not only once
            with pytest.warns(
                ApproximationWarning, match=r"rounding of operands and replies \(1\.2e-07\) may"
            ) as caught:
                product = operator @ np.ones(20)  # in float64, of entries that were rounded to float32
            assert caught[0].filename == __file__
            near(product, wide.sum(axis=1), 1e-1)
        with pytest.warns(ApproximationWarning, match="may cost"):
            anyk.matmul(matrix, np.eye(20), code, workers, anyk.All(), faults=gone)
        near(CodedOperator(wide, code, workers, anyk.All(), faults=gone) @ np.ones(20), wide.sum(axis=1))


def test_majorities_are_majorities(threads):
    matrix = np.arange(24.0).reshape(12, 2)
    code = anyk.RepetitionCode(N, 2, combine="majority")
    lie = {0: anyk.Corrupt("negate")}
    near(CodedOperator(matrix, code, threads, anyk.All(), faults=lie) @ np.ones(2), matrix.sum(axis=1))
    near(anyk.matmul(matrix, np.eye(2), code, threads, anyk.All(), faults=lie).value, matrix)


def test_overflow_in_decoding_is_refused(threads):
    matrix = np.random.default_rng(1).uniform(-1, 1, (6, 6)) * 5e307
    gone = {0: anyk.Raise(), 1: anyk.Raise()}
    operator = CodedOperator(matrix, anyk.ChebyshevCode(N, 6), threads, faults=gone)
    with np.errstate(all="ignore"), pytest.raises(UnsafeDecode, match="exceeds the range of float64"):
        operator @ np.eye(6)[0]
    with np.errstate(all="ignore"), pytest.raises(UnsafeDecode, match="exceeds the range of float64"):
        anyk.map(lambda x: x, matrix, code=anyk.ChebyshevCode(N, 6), workers=threads, faults=gone)


def test_noise_that_drowns_a_product_warns(threads):
    matrix = np.random.default_rng(0).standard_normal((30, 20))
    code, noise = MatDotCode(N, 4), anyk.AdditiveNoise(5.0)
    with pytest.warns(ApproximationWarning, match="noise is expected to leave an error of"):
        result = anyk.matmul(matrix, matrix.T, code, threads, noise=noise)
    happened = np.sqrt(np.mean((result.value - matrix @ matrix.T) ** 2))
    assert 0.2 < happened / result.expected_error < 5
    code = anyk.HarmonicFrameCode(N, POWERS)
    operator = CodedOperator(matrix, code, threads, anyk.All(), noise=anyk.AdditiveNoise(0.01))
    assert operator.expected_error is None
    off = operator @ np.eye(20) - matrix
    happened = np.sqrt(np.mean(off**2))  # the real part of a complex code
    assert operator.expected_error == pytest.approx(happened, rel=0.15)


def test_least_squares_products_take_what_there_is(threads):
    code = MatDotCode(5, 4, below_threshold="least-squares")
    with pytest.warns(ApproximationWarning, match="4 answers are too few for an exact product"):
        result = anyk.matmul(np.ones((4, 4)), np.ones((4, 4)), code, threads, faults={1: anyk.Raise()})
    assert len(result.run.responders) == 4
    with pytest.raises(TooFewResponders, match="needs 7 answers and has 5"):
        anyk.matmul(np.ones((4, 4)), np.ones((4, 4)), code, threads, anyk.Sufficient())


def test_closing_an_operator_that_others_wait_for():
    with anyk.ThreadWorkers(4) as workers:
        slow = {i: anyk.Slow(0.2) for i in range(4)}
        operator = CodedOperator(np.eye(12), anyk.SystematicMDSCode(4, 3), workers, faults=slow)
        outcomes = []

        def work():
            try:
                outcomes.append(np.abs(operator @ np.ones(12) - 1).max() < 1e-12)
            except WorkersClosed:
                outcomes.append("closed")

        together = [threading.Thread(target=work) for _ in range(3)]
        for thread in together:
            thread.start()
        time.sleep(0.1)
        operator.close()
        for thread in together:
            thread.join()
        assert set(outcomes) <= {True, "closed"}
        assert "closed" in outcomes


def test_one_adjoint_for_all_threads():
    with anyk.ThreadWorkers(4) as workers:
        operator = CodedOperator(np.arange(24.0).reshape(12, 2), anyk.SystematicMDSCode(4, 3), workers)
        published = []
        workers.publish = lambda value: published.append(value) or value
        together = [threading.Thread(target=lambda: operator.rmatvec(np.ones(12))) for _ in range(5)]
        for thread in together:
            thread.start()
        for thread in together:
            thread.join()
        assert sum(np.ndim(value) == 2 for value in published) == 4  # coded blocks of one copy
        near(operator.H @ np.ones(12), np.arange(24.0).reshape(12, 2).sum(axis=0))


def test_nested_lists_are_matrices(threads):
    rows = [[1, 2], [3, 4], [5, 6]]
    near(anyk.matmul(rows, [(1, 2), (3, 4)], workers=threads).value, np.array(rows) @ [[1, 2], [3, 4]])
    near(CodedOperator(rows, workers=threads) @ [1, 2], [5, 11, 17])


def test_default_code_and_inner_dimensions(threads):
    a, b = np.arange(12.0).reshape(4, 3), np.arange(15.0).reshape(3, 5)
    result = anyk.matmul(a, b, workers=threads)
    assert result.decoder.code.splits == (2, 1, 3)
    near(result.value, a @ b)
    near(anyk.matmul(np.ones((100, 2)), np.ones((2, 1)), workers=threads).value, np.full((100, 1), 2.0))
    for wrong in ((a, b.T), (a, a), (a[0], b)):
        with pytest.raises(BlocksError):
            anyk.matmul(*wrong, workers=threads)
    near(anyk.matmul(a, b, workers=2).value, a @ b)  # two processes of its own
